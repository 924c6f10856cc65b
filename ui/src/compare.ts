// SPDX-License-Identifier: MIT OR Apache-2.0
// The page that compares two runs of an instrument other than the flow: sums, tables with both values, and for a chosen row
// the distribution in both runs. The address keeps the search, the orders and the choice.

import "./style.css";
import "./plots.css";
import "./compare.css";
import { type Section, data } from "./compare-data.ts";
import { curveFigure, shapeFigure } from "./compare-plots.ts";
import { h } from "./dom.ts";
import { plural } from "./format.ts";
import { chosen, choose, onAddress, sectionLinks } from "./fragment.ts";
import { ready, section } from "./plots.ts";
import { searchKey } from "./search-key.ts";
import { type Column, SortedTable } from "./tables.ts";
import { themeButton } from "./theme.ts";

type Cells = [number | string | null, string][];

interface Row {
  cells: Cells;
  at: number;
}

interface Part {
  of: Section;
  element: HTMLElement;
  /** Shows the rows that the search finds; returns how many. */
  show(query: string): number;
}

/** A difference is marked by its sign, in colours that differ for every eye. */
function tone(key: string, value: number | string | null): string {
  if (!key.includes("diff") || typeof value !== "number" || value === 0) return "";
  return value > 0 ? "more" : "less";
}

function part(of: Section): Part {
  const { table } = of;
  const rows: Row[] = table.rows.map((cells, at) => ({ cells, at }));
  const numbers = table.heads.map((_, i) => rows.length === 0 || rows.every((row) => typeof row.cells[i]![0] !== "string"));
  // Names first: a wide table would hide them.
  const order = table.heads.map((_, i) => i).sort((a, b) => Number(numbers[a]) - Number(numbers[b]) || Number(table.keys[a] === "only_in") - Number(table.keys[b] === "only_in") || a - b);
  const columns = order.map((i): Column<Row> => ({
    head: table.heads[i] || (table.keys[i] ?? "").replaceAll("_", " "), title: table.keys[i] ?? "",
    key: (row) => (numbers[i] ? ((row.cells[i]![0] as number | null) ?? -Infinity) : String(row.cells[i]![0] ?? "")),
    order: numbers[i] && table.keys[i]!.includes("diff") ? (row) => Math.abs((row.cells[i]![0] as number | null) ?? 0) : undefined,
    show: (row) => row.cells[i]![1],
    tone: (row) => tone(table.keys[i] ?? "", row.cells[i]![0]),
  }) as Column<Row>);
  const figure = h("div", { class: "compare-figure", "aria-live": "polite" });
  const has = of.shapes.some((shape) => shape !== null);
  const draw = (at: number) => {
    const shape = of.shapes[at];
    figure.replaceChildren(shape ? shapeFigure(shape) : h("p", { class: "note" }, "This row has no distribution."));
  };
  const shown = new SortedTable<Row>({
    caption: of.title, columns, sort: Math.max(0, order.indexOf(0)), empty: "No row: neither run has one here, or none has the text of the search.",
    changed: (view) => choose(`sort-${of.id}`, view),
    ...(has ? { choose: (row: Row) => (choose(`row-${of.id}`, String(row.at)), draw(row.at)), chooseLabel: "Show both distributions" } : {}),
  });
  if (chosen(`sort-${of.id}`)) shown.setView(chosen(`sort-${of.id}`));
  const first = () => {
    const wanted = chosen(`row-${of.id}`);
    const at = wanted === "" ? of.shapes.findIndex((shape) => shape !== null) : Number(wanted);
    return of.shapes[at] ? at : -1;
  };
  const show = (query: string) => {
    const found = rows.filter((row) => !query || row.cells.some((cell) => cell[1].toLowerCase().includes(query)));
    const at = has ? first() : -1;
    shown.setRows(found, rows[at] ?? null);
    if (at >= 0) draw(at);
    return found.length;
  };
  const left = table.omitted > 0 ? h("p", { class: "note" }, `and ${plural(table.omitted, "row")} more with smaller differences; without --html, --limit 0 shows all.`) : null;
  const curves = of.curves.length > 0 ? h("div", { class: "multiples curves" }, ...of.curves.map(curveFigure)) : null;
  const element = section(of.id, of.title, h("p", { class: "note" }, of.about), curves, has ? figure : null, shown.element, left);
  return { of, element, show };
}

function header(): HTMLElement {
  const run = (i: 0 | 1) => {
    const side = data.sides[i];
    return h("div", { class: `run ${i ? "new" : "old"}` }, h("span", { class: "badge" }, i ? "NEW" : "OLD"),
      h("div", {}, h("code", {}, side.title || side.path), h("p", { class: "about" }, [side.path, side.about].filter(Boolean).join(" · ")),
        ...side.faults.map((fault) => h("p", { class: "bad" }, fault))));
  };
  const fact = ([name, [old, now]]: (typeof data.facts)[number]) => {
    const [a, b] = [old[0], now[0]];
    const known = typeof a === "number" && typeof b === "number";
    const change = known && b !== a && a > 0 ? `×${(b / a).toFixed(2)}` : "";
    return h("div", { class: "fact" }, h("dt", {}, name),
      h("dd", {}, old[1], h("span", { class: "arrow" }, " → "), now[1], " ", h("small", { class: known && b > a ? "more" : "less" }, change)));
  };
  return h("header", {},
    h("div", { class: "title" }, h("span", { class: "brand" }, "kprism diff"), h("h1", {}, data.name), themeButton()),
    h("div", { class: "runs" }, run(0), run(1)), h("dl", { class: "facts-line" }, ...data.facts.map(fact)),
    ...data.notes.map((note) => h("p", { class: "warning" }, note)));
}

function main(): void {
  const parts = data.sections.map(part);
  const search = h("input", { type: "search", id: "search", placeholder: "Search all tables…  ( / )", "aria-label": "Search all tables", autocomplete: "off", spellcheck: "false" });
  const found = h("output", { class: "found", for: "search" });
  const show = () => {
    const query = search.value.trim().toLowerCase();
    const counts = parts.map((p) => p.show(query));
    found.textContent = query ? plural(counts.reduce((a, b) => a + b, 0), "row") : "";
  };
  search.addEventListener("input", () => {
    choose("search", search.value);
    show();
  });
  const read = () => {
    search.value = chosen("search");
    show();
  };
  searchKey(search);
  onAddress(read);
  document.body.append(header(), sectionLinks(data.sections.map((s): [string, string] => [s.id, s.title])),
    h("main", {}, h("div", { class: "controls" }, h("div", { class: "search" }, search, found)), ...parts.map((p) => p.element)));
  read();
  ready();
}

main();
