// SPDX-License-Identifier: MIT OR Apache-2.0
// Coverage to click through: folders, files, functions, sources. What is shown is in the address, behind `#`.

import "./style.css";
import "./cover.css";
import { h, segmented } from "./dom.ts";
import { exact, percent, plural, share } from "./format.ts";
import { markReady } from "./ready.ts";
import { searchKey } from "./search-key.ts";
import { SortedTable, type Column } from "./tables.ts";
import { themeButton } from "./theme.ts";
import { byPath, contentOf, data, files, functions, hitLines, sum, type File, type Fn, type Numbers } from "./cover-data.ts";
import { sourceView } from "./cover-source.ts";

type Level = "folders" | "files" | "functions";

interface Row extends Numbers {
  name: string;
  /** Where choosing it leads. */
  to: string;
}

let level: Level = "folders";
/** The run whose lines are looked at; -1: all. */
let run = -1;
let query = "";

const go = (to: string) => (location.hash = to ? `#${encodeURI(to)}` : "#");

/** Folder or file, and a line of it. */
function place(): { path: string; line: number } {
  const text = decodeURI(location.hash.slice(1));
  const line = /:(\d+)$/.exec(text);
  return line && !byPath.has(text) ? { path: text.slice(0, line.index), line: Number(line[1]) } : { path: text, line: 0 };
}

const below = (folder: string) => files.filter((file) => folder === "" || file.path.startsWith(`${folder}/`));

/** What is directly in a folder: folders with all that is below, and files. A folder with a single folder in it is passed. */
function children(folder: string): Row[] {
  const groups = new Map<string, File[]>();
  for (const file of below(folder)) {
    const rest = file.path.slice(folder === "" ? 0 : folder.length + 1);
    const slash = rest.indexOf("/", rest.startsWith("/") ? 1 : 0);
    const name = slash < 0 ? rest : rest.slice(0, slash);
    const group = groups.get(name);
    if (group) group.push(file);
    else groups.set(name, [file]);
  }
  return [...groups].map(([name, group]) => {
    const path = folder === "" ? name : `${folder}/${name}`;
    return { ...sum(group, run), name: byPath.has(path) ? name : `${name}/`, to: path };
  });
}

function ratio<T>(head: string, title: string, hit: (row: T) => number, all: (row: T) => number): Column<T>[] {
  const part = (row: T) => share(hit(row), all(row));
  return [
    // Nothing of nothing is sorted behind all that has something.
    { head, title, key: (row) => (all(row) ? part(row) : -1), show: (row) => (all(row) ? percent(part(row)) : ""), bar: part,
      tone: (row) => (all(row) === 0 ? "" : part(row) >= 0.75 ? "high" : part(row) >= 0.25 ? "middle" : "low") },
    { head: "hit", title: `${title}: how many`, key: hit, show: (row) => exact(hit(row)) },
    { head: "of", title: `${title}: of how many`, key: all, show: (row) => exact(all(row)) },
  ];
}

function pathTable(caption: string, rows: Row[]): HTMLElement {
  const table = new SortedTable<Row>({
    caption,
    columns: [
      { head: "name", key: (row) => row.name, show: (row) => row.name },
      ...ratio<Row>("lines", "Lines executed", (row) => row.linesHit, (row) => row.lines),
      ...ratio<Row>("functions", "Functions called", (row) => row.functionsHit, (row) => row.functions),
      ...ratio<Row>("branches", "Branches taken", (row) => row.branchesTaken, (row) => row.branches),
      ...ratio<Row>("calls", "Calls executed", (row) => row.callsHit, (row) => row.calls),
    ],
    sort: 0,
    filter: (row) => row.to,
    choose: (row) => go(row.to),
    chooseLabel: "Open",
    empty: "Nothing is here.",
  });
  table.setRows(rows);
  return table.element;
}

function functionTable(caption: string, rows: Fn[], withPlace: boolean): HTMLElement {
  const table = new SortedTable<Fn>({
    caption,
    columns: [
      { head: "function", key: (row) => row.name, show: (row) => row.name },
      { head: "called", key: (row) => row.called, show: (row) => exact(row.called), tone: (row) => (row.called === 0 ? "low" : "") },
      ...ratio<Fn>("blocks", "Blocks executed", (row) => row.blocksHit, (row) => row.blocks),
      { head: "place", key: (row) => row.file.path, show: (row) => (withPlace ? `${row.file.path}:${row.line}` : `line ${row.line}`) },
    ],
    sort: 1,
    filter: (row) => `${row.name} ${row.file.path}`,
    choose: (row) => go(`${row.file.path}:${row.line}`),
    chooseLabel: "Show its source",
    empty: "No functions.",
  });
  table.setRows(rows);
  return table.element;
}

function facts(numbers: Numbers): HTMLElement {
  // Of a single run only lines are known.
  const of = run < 0 ? "" : " in any run";
  const fact = (name: string, hit: number, all: number) =>
    all ? h("div", { class: "fact" }, h("dt", {}, name), h("dd", {}, `${percent(share(hit, all))} `, h("small", {}, `${exact(hit)} of ${exact(all)}`))) : null;
  return h("dl", { class: "facts-line" },
    fact("lines executed", numbers.linesHit, numbers.lines), fact(`functions called${of}`, numbers.functionsHit, numbers.functions),
    fact(`branches taken${of}`, numbers.branchesTaken, numbers.branches), fact(`calls executed${of}`, numbers.callsHit, numbers.calls));
}

function crumbs(path: string): HTMLElement {
  const parts = path === "" ? [] : path.split("/");
  const items = parts.map((name, i): [string, string] => [name, parts.slice(0, i + 1).join("/")]).filter(([name]) => name !== "");
  return h("nav", { class: "crumbs", "aria-label": "Where you are" }, h("ol", {}, ...[["all", ""] as [string, string], ...items].map(([name, to]) =>
    h("li", {}, h("button", { type: "button", "aria-current": to === path ? "location" : false, click: () => go(to) }, name)))));
}

const main = h("main");
let drawn = 0;

async function draw(): Promise<void> {
  const turn = ++drawn;
  const { path, line } = place();
  const file = byPath.get(path);
  const found = query !== "";
  const parts: (Node | null)[] = [crumbs(path)];
  let after = () => {};
  if (found) {
    const wanted = query.toLowerCase();
    const own = below(file ? "" : path).filter((one) => one.path.toLowerCase().includes(wanted));
    const named = (await functions()).filter((one) => one.name.toLowerCase().includes(wanted));
    parts.push(
      h("section", { class: "files" }, h("h2", {}, `Files with “${query}” in their path`), pathTable("files found", rowsOf(own))),
      h("section", { class: "functions" }, h("h2", {}, `Functions with “${query}” in their name`), functionTable("functions found", named, true)));
  } else if (file) {
    const [content, all] = await Promise.all([contentOf(file), functions()]);
    const view = sourceView(content, data.runs.length, run);
    parts.push(facts({ ...file, linesHit: hitLines(file, run) }),
      h("details", {}, h("summary", {}, "Functions"), functionTable("functions of the file", all.filter((one) => one.file === file), false)), view.element);
    after = () => (line ? view.show(line) : scrollTo(0, 0));
  } else if (level === "functions") {
    const all = (await functions()).filter((one) => path === "" || one.file.path.startsWith(`${path}/`));
    parts.push(facts(sum(below(path), run)), functionTable("functions", all, true));
  } else {
    parts.push(facts(sum(below(path), run)), pathTable(level, level === "files" ? rowsOf(below(path)) : children(path)));
  }
  // Another was asked for meanwhile.
  if (turn !== drawn) return;
  main.replaceChildren(...parts.filter((part) => part !== null));
  document.body.classList.toggle("is-source", file !== undefined && !found);
  after();
}

const rowsOf = (all: File[]): Row[] => all.map((file) => ({ ...file, linesHit: hitLines(file, run), name: file.path, to: file.path }));

const search = h("input", { type: "search", placeholder: "Search files and functions… ( / )", "aria-label": "Search files and functions" });
search.addEventListener("input", () => {
  query = search.value.trim();
  void draw().then(markReady);
});
const levels = segmented<Level>("Level", [["folders", "Folders"], ["files", "Files"], ["functions", "Functions"]], level, (chosen) => {
  level = chosen;
  void draw().then(markReady);
});
const runs = data.runs.length > 1
  ? h("select", { "aria-label": "Run", change: (event: Event) => {
    run = Number((event.target as HTMLSelectElement).value);
    void draw().then(markReady);
  } }, h("option", { value: -1 }, `all ${data.runs.length} runs`), ...data.runs.map((name, i) => h("option", { value: i }, `lines of run ${i + 1}: ${name}`)))
  : null;
addEventListener("hashchange", () => {
  search.value = query = "";
  void draw().then(markReady);
});
searchKey(search);
addEventListener("keydown", (event) => {
  if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "n" || event.key === "p") main.querySelector(".source")?.parentElement?.dispatchEvent(new CustomEvent("step", { detail: event.key === "n" }));
});
const about = `${plural(data.objects, "object")}, ${plural(files.length, "source file")}${data.root ? `, built in ${data.root}` : ""}`;
document.body.append(
  h("header", {}, h("div", { class: "title" }, h("span", { class: "brand" }, "coverage"), h("h1", {}, data.title), themeButton()), h("p", { class: "about" }, about)),
  h("nav", { class: "sections" }, h("div", { class: "controls" }, levels, runs, h("div", { class: "search" }, search))),
  main,
);
void draw().then(markReady);
