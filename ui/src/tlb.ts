// SPDX-License-Identifier: MIT OR Apache-2.0
// The page of TLB misses: a map, the objects whose memory missed, the paper's curves, advice, the account.

import "./style.css";
import "./plots.css";
import { Curves } from "./curves.ts";
import { h } from "./dom.ts";
import { count, exact, percent, plural, share } from "./format.ts";
import { chosen, choose, onAddress, sectionLinks } from "./fragment.ts";
import { HeatMap } from "./heatmap.ts";
import { account } from "./losses.ts";
import { ready, section } from "./plots.ts";
import { searchKey } from "./search-key.ts";
import { SortedTable, type Column } from "./tables.ts";
import { themeButton } from "./theme.ts";
import { data, type ObjectRow, type PlainTable } from "./tlb-data.ts";

const misses = (row: ObjectRow): number => row.misses[0]!;
const number = new Map(data.objects.map((row, i) => [row, i]));
const text = (row: ObjectRow) => `${row.name} ${row.kind} ${row.process} ${row.start}`.toLowerCase();

function size(bytes: number): string {
  for (const [unit, name] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]] as const) {
    if (bytes >= unit) return `${+(bytes / unit).toPrecision(4)} ${name}`;
  }
  return `${bytes} bytes`;
}

/** A table as the terminal prints it, to sort and to filter. */
function plainTable(table: PlainTable): Node {
  type Row = PlainTable["rows"][number];
  const numbers = (i: number) => table.rows.every((row) => typeof row[i]![0] !== "string");
  const columns = table.heads.map((head, i): Column<Row> => ({
    head, title: table.keys[i] ?? "",
    key: (row) => (numbers(i) ? ((row[i]![0] as number | null) ?? -Infinity) : String(row[i]![0] ?? "")),
    show: (row) => row[i]![1],
  }));
  const shown = new SortedTable<Row>({ caption: table.name, columns, sort: Math.max(0, columns.findIndex((_, i) => numbers(i))), filter: (row) => row.map((cell) => cell[1]).join(" "), empty: "No rows." });
  shown.setRows(table.rows);
  const left = table.omitted > 0 ? h("p", { class: "note" }, `and ${plural(table.omitted, "row")} more; kprism report tlb ${table.name} --limit 0 shows all.`) : "";
  return h("div", {}, table.about ? h("p", { class: "note" }, table.about) : "", shown.element, left);
}

const panel = h("aside", { class: "panel object", "aria-live": "polite" });

/** An object in words, and the line that allocated it. */
function tell(object: number, map: HeatMap): void {
  const row = data.objects[object];
  if (!row) {
    panel.replaceChildren(h("h3", {}, object === -1 ? plural(data.map.others, "other object") : "An object"),
      h("p", { class: "note" }, object === -1 ? "They miss least, and share the last row of the map. The table has them one by one." : "Choose one in the map or in the table: the line that allocated it is shown here."));
    return;
  }
  const fact = (name: string, value: string) => h("tr", {}, h("th", {}, name), h("td", {}, value));
  const places = row.allocated
    ? [h("h4", {}, `Allocated by ${row.allocated[0]}, called from`), h("ol", { class: "allocated" }, ...row.allocated[1].map((place) => h("li", {}, place)))]
    : [h("h4", {}, "Allocated by"), h("p", { class: "note" }, row.kind === "mmap" || row.kind === "heap"
      ? "The run does not know who allocated it: no call of an allocating function was seen for it."
      : `Not allocated: ${({ elf: "part of a program or library", stack: "a stack", kernel: "a part of the kernel's addresses", unknown: "no mapping of it was recorded" } as Record<string, string>)[row.kind] ?? row.kind}.`)];
  panel.replaceChildren(h("h3", {}, row.name), h("table", { class: "facts" }, h("tbody", {},
    fact("misses", exact(misses(row))), ...(row.interval ? [fact("at least, at most", `${exact(row.interval[0])}, ${exact(row.interval[1])}`)] : []),
    ...data.geometries.slice(1).map((name, i) => fact(`misses, ${name}`, exact(row.misses[i + 1]!))),
    fact("of all", percent(share(misses(row), data.misses))), fact("kind", row.kind), fact("process", row.process), fact("start", row.start),
    fact("size", size(row.bytes)), fact("pages that missed", exact(row.pages)))),
    ...places, h("div", { class: "controls" }, h("button", { type: "button", class: "only", click: () => map.showObject(object) }, "Show only this in the map"),
      h("button", { type: "button", click: () => pick(-2) }, "Choose none")));
}

let pick: (object: number) => void = () => {};

function main(): void {
  const search = h("input", { type: "search", placeholder: "Search objects (/)", "aria-label": "Search objects" });
  const found = h("span", { class: "found", role: "status" });
  const map = new HeatMap((object) => pick(object));
  const others = data.geometries.slice(1);
  const table = new SortedTable<ObjectRow>({
    caption: "objects",
    columns: [
      { head: "share", key: misses, show: (row) => percent(share(misses(row), data.misses)), bar: (row) => share(misses(row), data.misses) },
      { head: "misses", key: misses, show: (row) => count(misses(row)) },
      ...(data.sampled ? [{ head: "at least", key: (row: ObjectRow) => row.interval?.[0] ?? 0, show: (row: ObjectRow) => count(row.interval?.[0] ?? 0) }, { head: "at most", key: (row: ObjectRow) => row.interval?.[1] ?? 0, show: (row: ObjectRow) => count(row.interval?.[1] ?? 0) }] : []),
      ...others.map((head, i): Column<ObjectRow> => ({ head, key: (row) => row.misses[i + 1]!, show: (row) => count(row.misses[i + 1]!) })),
      { head: "object", key: (row) => row.name, show: (row) => row.name },
      { head: "process", key: (row) => row.process, show: (row) => row.process },
      { head: "kind", key: (row) => row.kind, show: (row) => row.kind },
      { head: "start", key: (row) => row.start.padStart(18), show: (row) => row.start },
      { head: "size", key: (row) => row.bytes, show: (row) => size(row.bytes) },
      { head: "pages", title: "Pages of 4 KiB that missed", key: (row) => row.pages, show: (row) => exact(row.pages) },
    ],
    sort: 1,
    choose: (row) => pick(number.get(row)!),
    chooseLabel: "Show the line that allocated it, and frame it in the map",
    changed: (view) => choose("sort", view === "1" ? "" : view),
    empty: "Nothing missed.",
  });

  const show = () => {
    const query = chosen("q").trim().toLowerCase();
    if (search.value.trim().toLowerCase() !== query) search.value = chosen("q");
    const rows = data.objects.filter((row) => query === "" || text(row).includes(query));
    const at = chosen("object") === "" ? -2 : Number(chosen("object"));
    table.setView(chosen("sort") || "1");
    table.setRows(rows, data.objects[at] ?? null);
    map.mark(at, (object) => query === "" || (data.objects[object] !== undefined && text(data.objects[object]).includes(query)));
    found.textContent = query === "" ? "" : `${plural(rows.length, "object")}, ${percent(share(rows.reduce((sum, row) => sum + misses(row), 0), data.misses))} of the misses`;
    tell(at, map);
  };
  pick = (object) => {
    choose("object", object === -2 ? "" : String(object));
    show();
  };
  search.addEventListener("input", () => {
    choose("q", search.value.trim());
    show();
  });
  onAddress(show);
  searchKey(search);

  const placed = map.sum();
  const unknown = data.objects.filter((row) => row.kind === "unknown").reduce((sum, row) => sum + misses(row), 0);
  const lost = data.account.filter((entry) => entry.fate !== "seen" && entry.fate !== "kept" && entry.count !== 0);
  const beside = h("ul", { class: "beside" },
    h("li", {}, placed === data.misses ? `All ${exact(data.misses)} misses have a place in the map.` : `${exact(placed)} of ${exact(data.misses)} misses have a place in the map.`),
    h("li", unknown > 0 ? { class: "bad" } : {}, `${exact(unknown)} misses (${percent(share(unknown, data.misses))}) are of addresses that no recorded mapping holds.`),
    data.map.others > 0 ? h("li", {}, `The ${plural(data.map.others, "object")} that miss least share one row.`) : null,
    ...(lost.length > 0 ? lost.map((entry) => h("li", { class: "bad" }, `${entry.fate.replace("_", " ")}: ${entry.count === null ? "not known how many" : exact(entry.count)} ${entry.unit}`)) : [h("li", { class: "good" }, "Nothing was lost or guessed.")]));
  const omitted = data.omitted[0] > 0 ? h("p", { class: "note" }, `and ${plural(data.omitted[0], "object")} more with ${exact(data.omitted[1])} misses; kprism report tlb objects --limit 0 shows all.`) : null;
  const advice = data.advice
    ? [h("p", { class: "note" }, "Misses that larger pages would save: the run replayed with one object, or all, on them. To act on a row: madvise(start, length, MADV_HUGEPAGE), or memory from hugetlbfs."), plainTable(data.advice)]
    : [h("p", { class: "note" }, data.no_advice ?? "")];
  const sections: [string, string][] = [["map", "Map"], ["objects", "Objects"], ["curves", "Distribution"], ["advice", "Larger pages"],
    ...data.tables.map((t): [string, string] => [t.name, t.name[0]!.toUpperCase() + t.name.slice(1)]), ["account", "Account"]];
  document.body.append(
    h("header", {}, h("div", { class: "title" }, h("span", { class: "brand" }, "TLB misses"), h("h1", {}, data.title), themeButton()), h("p", { class: "about" }, data.method),
      data.stopped ? h("p", { class: "warning" }, `The recording ended early: ${data.stopped}`) : "",
      h("dl", { class: "facts-line" }, ...[["misses", exact(data.misses)], ["objects", exact(data.objects.length + data.omitted[0])]].map(([name, value]) => h("div", { class: "fact" }, h("dt", {}, name!), h("dd", { id: `all-${name}` }, value!))))),
    sectionLinks(sections),
    h("main", {},
      section("map", "Misses over address and time", h("div", { class: "controls" }, h("div", { class: "search" }, search, found)), h("div", { class: "stage" }, h("div", {}, map.element, beside), panel)),
      section("objects", "Objects", table.element, omitted),
      section("curves", "Distribution", new Curves().element),
      section("advice", "Larger pages", ...advice),
      ...data.tables.map((t) => section(t.name, t.name[0]!.toUpperCase() + t.name.slice(1), plainTable(t))),
      section("account", "Account", ...data.notes.map((note) => h("p", { class: "warning" }, note)), account(data.account))));
  show();
  ready();
}

main();
