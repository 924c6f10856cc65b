// SPDX-License-Identifier: MIT OR Apache-2.0
// The page that compares two runs: both sunbursts side by side, what is pointed at or in focus in one also
// in the other, and the functions below.

import "./style.css";
import { chartTable } from "./behind-chart.ts";
import { Chart, type View, breadcrumbs } from "./chart.ts";
import { type Frame, type Header, type Weight, pathTo, readData } from "./data.ts";
import { type Change, Diff, type DiffData, type DiffPath, type Known, NOT_KNOWN, type Pair, SIDES, SIDE_NAMES, type Side } from "./diff-data.ts";
import { h, s, segmented } from "./dom.ts";
import { count, duration, exact, percent, plural, share, weighed, weightName } from "./format.ts";
import { isWhole, wholeness } from "./losses.ts";
import { markReady } from "./ready.ts";
import { searchKey } from "./search-key.ts";
import { SortedTable } from "./tables.ts";
import { themeButton } from "./theme.ts";

const CHANGES: [Change, string][] = [
  ["only-new", "only in NEW"],
  ["grew", "grew"],
  ["same", "the same"],
  ["shrank", "shrank"],
  ["only-old", "only in OLD"],
];
/** In one run; of the other it is not known. Listed only on pages where something is not known. */
const UNKNOWN_CHANGE: [Change, string] = ["not-known", "of one run not known"];
const NO_CHANGE = "±0";
const EXTRAS = 14;

/** Orange is more, blue is less: apart for every kind of colour vision. What only one run has is also striped, and what is not
 * known of one run is hatched in grey. */
function color(change: Change, strength: number): string {
  const mix = Math.min(1, Math.max(0.18, strength));
  switch (change) {
    case "same": return "oklch(0.86 0.008 260)";
    case "grew": return `oklch(${(0.93 - 0.06 * mix).toFixed(3)} ${(0.03 + 0.07 * mix).toFixed(3)} 82)`;
    case "shrank": return `oklch(${(0.88 - 0.12 * mix).toFixed(3)} ${(0.02 + 0.09 * mix).toFixed(3)} 250)`;
    case "only-new": return "url(#stripes-only-new)";
    case "only-old": return "url(#stripes-only-old)";
    case "not-known": return "url(#hatch-not-known)";
  }
}

/** Stripes for what only one run has, a hatch for what is not known of one; referred to by name from every drawing of the page. */
function patterns(): SVGSVGElement {
  const stripes = (id: string, ground: string, line: string, turn: number) =>
    s("pattern", { id, width: 9, height: 9, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${turn})` },
      s("rect", { width: 9, height: 9, fill: ground }), s("rect", { width: 3, height: 9, fill: line }));
  return s("svg", { width: 0, height: 0, "aria-hidden": "true", class: "patterns" }, s("defs", {},
    stripes("stripes-only-new", "#dd5a12", "#f08a45", 45), stripes("stripes-only-old", "#3f7fd1", "#7fb0ea", -45),
    s("pattern", { id: "hatch-not-known", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      s("rect", { width: 7, height: 7, fill: "#e4e6ea" }), s("path", { d: "M0 0H7M0 0V7", stroke: "#8b919c", "stroke-width": 2 }))));
}

/** NEW less OLD, if both are known. */
function differenceOf([before, after]: Pair<Known>): Known {
  return before === null || after === null ? null : after - before;
}

/** A class for a difference. */
function tone(difference: Known): string {
  return difference === null ? "not-known" : difference > 0 ? "more" : difference < 0 ? "less" : "";
}

const weighedIfKnown = (value: Known, weight: Weight) => (value === null ? NOT_KNOWN : weighed(value, weight));

function signed(difference: Known, weight: Weight): string {
  if (difference === null) return NOT_KNOWN;
  if (difference === 0) return NO_CHANGE;
  return `${difference > 0 ? "+" : "−"}${weighed(Math.abs(difference), weight)}`;
}

function factor([before, after]: Pair<Known>): string {
  if (before === null || after === null) return "";
  if (before === 0) return after === 0 ? "" : "new";
  return after === 0 ? "gone" : `×${(after / before).toFixed(2)}`;
}

function header(diff: Diff): HTMLElement {
  const { data } = diff;
  const title = data.name === "all" ? "Two runs" : data.name;
  const run = (side: Side) => {
    const head: Header = data.headers[side];
    const lost = isWhole(head.account) ? null : h("span", { class: "bad" }, ` · account: ${wholeness(head.account)}`);
    return h("div", { class: `run ${side ? "new" : "old"}` },
      h("span", { class: "badge" }, SIDE_NAMES[side]),
      h("div", {}, h("code", {}, head.command || "imported trace"),
        h("p", { class: "about" }, [data.paths[side], head.kernel && `Linux ${head.kernel}`, `${exact(head.instructions)} instructions in ${duration(head.span_ns)}`].filter(Boolean).join(" · "), lost)));
  };
  const root = diff.tree.paths[0];
  const fact = (name: string, pair: Pair<Known>, show: (n: number) => string, weight: Weight = "ns") => {
    const [before, after] = pair;
    const change = tone(differenceOf(pair));
    const value = (n: Known) => (n === null ? "not known" : show(n));
    return h("div", { class: "fact", title: diff.reason(pair, weight) }, h("dt", {}, name),
      h("dd", {}, value(before), h("span", { class: "arrow" }, " → "), value(after), " ", h("small", { class: change }, before === after ? "" : factor(pair))));
  };
  const per = data.calls ? " per call" : "";
  const facts = h("dl", { class: "facts-line" },
    data.calls ? fact("calls", SIDES.map((side) => diff.invocations(side)) as Pair<Known>, exact) : null,
    fact(`instructions${per}`, diff.totals(root, "insns"), count, "insns"),
    fact(`time on CPU${per}`, diff.totals(root, "ns"), duration));
  return h("header", {},
    h("div", { class: "title" }, h("span", { class: "brand" }, "kprism diff"), h("h1", {}, title), themeButton()),
    h("div", { class: "runs" }, run(0), run(1)), facts);
}

/** OLD, NEW and the difference of a path in numbers. */
function numbers(diff: Diff, path: DiffPath): HTMLTableElement {
  const cells = (name: string, pair: Pair<Known>, weight: Weight) => {
    const by = differenceOf(pair);
    return h("tr", { title: diff.reason(pair, weight) }, h("th", { scope: "row" }, name), ...pair.map((value) => h("td", {}, weighedIfKnown(value, weight))),
      h("td", { class: tone(by) }, signed(by, weight)));
  };
  const why = diff.reason(diff.totals(path, "insns"), "insns") || diff.reason(diff.totals(path, "ns"), "ns");
  return h("table", { class: "facts" },
    h("thead", {}, h("tr", {}, h("td", {}), ...["OLD", "NEW", "difference"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {},
      cells("instructions", diff.totals(path, "insns"), "insns"),
      cells("itself", diff.selves(path, "insns"), "insns"),
      cells("time on CPU", diff.totals(path, "ns"), "ns"),
      cells("itself", diff.selves(path, "ns"), "ns"),
      h("tr", {}, h("th", { scope: "row" }, "calls"), ...SIDES.map((side) => h("td", {}, diff.callsText(side, diff.calls(path, side)))), h("td", {})),
      why ? h("tr", {}, h("td", { colspan: 4, class: "why" }, why)) : null));
}

/** The words for a change; of a path that only one run has, that run's name. */
function changeName(diff: Diff, path: DiffPath, weight: Weight): string {
  const change = diff.change(path, weight);
  if (change !== "not-known") return CHANGES.find(([name]) => name === change)?.[1] ?? "";
  const has = SIDES.filter((side) => path.has[side]);
  if (has.length === 2) return UNKNOWN_CHANGE[1];
  const [there, other]: Pair<Side> = has[0] === 0 ? [0, 1] : [1, 0];
  return `in ${SIDE_NAMES[there]}; of ${SIDE_NAMES[other]} not known`;
}

function panel(diff: Diff, path: DiffPath, weight: Weight, go: (path: DiffPath) => void): DocumentFragment {
  const out = document.createDocumentFragment();
  const change = diff.change(path, weight);
  const kind = path.kind === "call" || path.kind === "root" ? "" : `entered by ${path.kind === "tail" ? "tail call" : path.kind}`;
  out.append(
    h("h3", {}, key(change), path.name),
    h("p", { class: "where" }, [changeName(diff, path, weight), path.module, kind].filter(Boolean).join(" · ")),
    numbers(diff, path));
  // What is not known to differ is in no list of differences.
  const difference = (child: DiffPath) => differenceOf(diff.totals(child, weight)) ?? 0;
  const differing = (of: DiffPath) => of.children.map((child) => ({ child, by: difference(child) })).filter(({ by }) => by !== 0)
    .sort((a, b) => Math.abs(b.by) - Math.abs(a.by));
  // A chain of calls that hand the difference on is one step.
  let top = path;
  let children = differing(top);
  for (let below = children; below.length > 0 && Math.abs(below[0].by) > 0.95 * Math.abs(difference(top)); ) {
    const next = below[0].child;
    below = differing(next);
    if (below.length > 0) [top, children] = [next, below];
  }
  if (children.length > 0) {
    const most = Math.abs(children[0].by);
    const list = h("ol", { class: "callees" });
    for (const { child, by } of children.slice(0, EXTRAS)) {
      const bar = h("span", { class: `bar ${by > 0 ? "more" : "less"}` });
      bar.style.width = `${share(Math.abs(by), most) * 100}%`;
      list.append(h("li", {}, h("button", { type: "button", click: () => go(child) },
        bar, h("span", { class: "name" }, child.name), h("span", { class: "value" }, signed(by, weight)))));
    }
    out.append(h("h4", {}, top === path ? "Where the difference is" : `Where the difference is, below ${top.name}`), list);
  }
  return out;
}

function key(change: Change): HTMLElement {
  return h("span", { class: `dot key ${change}` });
}

interface FunctionRow {
  name: string;
  module: string;
  present: number;
  calls: Pair<Known>;
  self: Record<Weight, Pair<Known>>;
  total: Record<Weight, Pair<Known>>;
}

function functionRows(diff: Diff): FunctionRow[] {
  const { functions, funcs, modules } = diff.data;
  return functions.func.map((func, i) => ({
    name: funcs.name[func],
    module: modules[funcs.module[func]] ?? "",
    present: functions.present[i],
    calls: diff.callsOfFunction(i),
    self: { insns: diff.ofFunction(functions.self_insns, i, "insns"), ns: diff.ofFunction(functions.self_ns, i, "ns") },
    total: { insns: diff.ofFunction(functions.total_insns, i, "insns"), ns: diff.ofFunction(functions.total_ns, i, "ns") },
  }));
}

function functionTable(diff: Diff, weight: () => Weight, find: (name: string) => void): SortedTable<FunctionRow> {
  // What is not known is sorted behind all that is.
  const last = (value: Known) => value ?? -Infinity;
  const value = (head: string, of: (row: FunctionRow) => Pair<Known>, side: Side) => ({
    head, key: (row: FunctionRow) => last(of(row)[side]), show: (row: FunctionRow) => weighedIfKnown(of(row)[side], weight()),
    tip: (row: FunctionRow) => (of(row)[side] === null ? diff.reason(of(row), weight()) : ""),
  });
  const change = ({ present }: FunctionRow) => {
    if (present === 3) return "";
    const [there, other]: Pair<Side> = present === 1 ? [0, 1] : [1, 0];
    return diff.data.unknown[other] ? `in ${SIDE_NAMES[there]}; of ${SIDE_NAMES[other]} not known` : `only in ${SIDE_NAMES[there]}`;
  };
  const calls = (side: Side) => ({ head: `calls ${SIDE_NAMES[side]}`, key: (row: FunctionRow) => last(row.calls[side]), show: (row: FunctionRow) => diff.callsText(side, row.calls[side]), tip: (row: FunctionRow) => diff.reason([row.calls[side], row.calls[side]], "ns") });
  const difference = (head: string, title: string, of: (row: FunctionRow) => Pair<Known>) => {
    const by = (row: FunctionRow) => differenceOf(of(row));
    return {
      head, title, key: (row: FunctionRow) => last(by(row)), order: (row: FunctionRow) => Math.abs(by(row) ?? 0),
      show: (row: FunctionRow) => signed(by(row), weight()),
      tone: (row: FunctionRow) => tone(by(row)),
      tip: (row: FunctionRow) => diff.reason(of(row), weight()),
    };
  };
  return new SortedTable<FunctionRow>({
    caption: "functions",
    columns: [
      { head: "function", key: (row) => row.name, show: (row) => row.name },
      difference("self difference", "NEW less OLD, in the function itself; sorted by size", (row) => row.self[weight()]),
      value("self OLD", (row) => row.self[weight()], 0),
      value("self NEW", (row) => row.self[weight()], 1),
      difference("total difference", "With callees; recursion counted once", (row) => row.total[weight()]),
      value("total OLD", (row) => row.total[weight()], 0),
      value("total NEW", (row) => row.total[weight()], 1),
      calls(0), calls(1),
      { head: "change", key: change, show: change },
      { head: "module", key: (row) => row.module, show: (row) => row.module },
    ],
    sort: 1,
    filter: (row) => `${row.name} ${row.module} ${change(row)}`,
    choose: (row) => find(row.name),
    chooseLabel: "Highlight in both charts",
    empty: "No function ran.",
  });
}

function main(): void {
  const diff = new Diff(readData<DiffData>());
  const { tree, data } = diff;
  const sizes = new Map<DiffPath, number>();
  let weight: Weight = data.uncounted.includes(true) ? "ns" : "insns";
  let following = false;
  const side = h("aside", { class: "panel", "aria-live": "off" });
  const crumbs = h("nav", { class: "crumbs", "aria-label": "Path to the focus" });
  const notes: Pair<HTMLElement> = [h("p", { class: "note missing", hidden: true }), h("p", { class: "note missing", hidden: true })];
  let focus: DiffPath = tree.paths[0];
  const showPanel = (path: DiffPath) => side.replaceChildren(panel(diff, path, weight, go));
  const nearest = (path: DiffPath, at: Side): Frame => {
    for (let p: DiffPath | null = path; p; p = p.parent) if (p.frames[at]) return p.frames[at];
    return tree.frames[at][0];
  };

  /** How much of the largest difference is here, on a scale that lets small ones be seen. */
  const strength = (path: DiffPath): number => {
    let known = sizes.get(path);
    if (known === undefined) {
      // A change that is not known has no strength.
      const pair = diff.totals(path, weight);
      const [before, after] = pair.includes(null) ? [0, 0] : (pair as Pair<number>);
      known = Math.abs(Math.log2(Math.max(1, after) / Math.max(1, before))) / 3;
      sizes.set(path, known);
    }
    return known;
  };

  const go = (path: DiffPath) => {
    focus = path;
    following = true;
    for (const at of SIDES) {
      charts[at].zoom(nearest(path, at));
      notes[at].hidden = path.frames[at] !== null;
      notes[at].textContent = data.unknown[at]
        ? `${path.name} was not seen in ${SIDE_NAMES[at]}, where it may have run: its caller is shown.`
        : `${path.name} is not in ${SIDE_NAMES[at]}: its caller is shown.`;
    }
    following = false;
    const frame = path.frames[1] ?? path.frames[0];
    for (const own of tables) if (own.open) own.dispatchEvent(new Event("toggle"));
    if (frame) crumbs.replaceChildren(breadcrumbs(frame, (to) => go(tree.of(to))));
    showPanel(path);
  };
  const chart = (at: Side): Chart => {
    const other: Side = at === 0 ? 1 : 0;
    return new Chart({
      focus: (frame) => {
        if (!following && tree.of(frame) !== focus) go(tree.of(frame));
      },
      point: (frame) => {
        if (!charts) return;
        charts[other].link(frame && tree.of(frame).frames[other]);
        showPanel(frame ? tree.of(frame) : focus);
      },
    }, {
      labels: 1.3,
      fill: (frame) => color(diff.change(tree.of(frame), weight), strength(tree.of(frame))),
      classes: (frame) => [`change-${diff.change(tree.of(frame), weight)}`],
      tip: (frame) => [
        h("strong", {}, frame.name),
        h("em", {}, [changeName(diff, tree.of(frame), weight), frame.module].filter(Boolean).join(" · ")),
        h("div", {}, h("span", {}, `of ${SIDE_NAMES[at]}'s ${weightName(weight)}`), h("b", {}, percent(share(frame.total[weight], tree.frames[at][0].total[weight])))),
        numbers(diff, tree.of(frame)),
      ],
    });
  };
  let charts: Pair<Chart>;
  charts = [chart(0), chart(1)];
  const tables = charts.map((c, at) => chartTable(c, `What the chart of ${SIDE_NAMES[at as Side]} shows as a table`)) as Pair<HTMLDetailsElement>;

  const search = h("input", { type: "search", id: "search", placeholder: "Search functions…  ( / )", "aria-label": "Search functions", autocomplete: "off", spellcheck: "false" });
  const found = h("output", { class: "found", for: "search" });
  const runSearch = () => {
    const results = charts.map((c) => c.search(search.value));
    found.textContent = results[0] && results[1] ? `${percent(results[0].fraction)} of OLD, ${percent(results[1].fraction)} of NEW` : "";
  };
  search.addEventListener("input", runSearch);
  searchKey(search);

  const table = functionTable(diff, () => weight, (name) => {
    search.value = name;
    runSearch();
    document.getElementById("calls")?.scrollIntoView({ behavior: "auto", block: "start" });
  });
  const extras = new SortedTable<DiffPath>({
    caption: data.unknown.includes(true) ? "paths that only one run has" : "paths that only one run took",
    columns: [
      { head: "function", key: (p) => p.name, show: (p) => p.name },
      { head: "only in", key: (p) => (p.frames[1] ? "NEW" : "OLD"), show: (p) => (p.frames[1] ? "NEW" : "OLD") },
      { head: "share", title: "Of all that this run did here", key: (p) => shareOf(p), show: (p) => percent(shareOf(p)), bar: (p) => shareOf(p) },
      { head: "instructions", key: (p) => own(p, "insns") ?? -Infinity, show: (p) => weighedIfKnown(own(p, "insns"), "insns") },
      { head: "time", key: (p) => own(p, "ns") ?? -Infinity, show: (p) => weighedIfKnown(own(p, "ns"), "ns") },
      { head: "calls", key: (p) => (p.frames[1] ?? p.frames[0])?.calls ?? 0, show: (p) => (p.frames[1] ? diff.callsText(1, p.frames[1].calls) : diff.callsText(0, p.frames[0]?.calls ?? 0)) },
      { head: "called from", key: callers, show: callers },
    ],
    sort: 2,
    filter: (p) => `${p.name} ${callers(p)}`,
    choose: (p) => {
      go(p);
      document.getElementById("calls")?.scrollIntoView({ behavior: "auto", block: "start" });
    },
    chooseLabel: "Show in both charts",
    empty: data.unknown.includes(true) ? "No path is in one run alone." : "Both runs took the same paths.",
  });
  /** What a path cost in the run that has it. */
  const own = (path: DiffPath, of: Weight): Known => diff.totals(path, of)[path.frames[1] ? 1 : 0];
  const shareOf = (path: DiffPath): number => {
    const at: Side = path.frames[1] ? 1 : 0;
    return share(path.frames[at]?.total[weight] ?? 0, tree.frames[at][0].total[weight]);
  };

  const somethingUnknown = [...data.unknown, ...data.uncounted].includes(true);
  const changes = somethingUnknown ? [...CHANGES, UNKNOWN_CHANGE] : CHANGES;
  const legend = h("ul", { class: "legend", "aria-label": "Colours" }, ...changes.map(([change, name]) => h("li", {}, key(change), name)));
  legend.append(h("li", {}, "rings: call depth; nothing drawn: the caller itself"));
  const fill = () => {
    runSearch();
    table.setRows(rows);
    extras.setRows(diff.extras(weight));
    showPanel(focus);
  };
  const controls = h("div", { class: "controls" },
    segmented<Weight>("Weight", [["insns", "Instructions"], ["ns", "Time"]], weight, (value) => {
      weight = value;
      sizes.clear();
      for (const c of charts) c.setWeight(weight);
      fill();
    }),
    segmented<View>("View", [["sunburst", "Sunburst"], ["icicle", "Icicle"], ["flame", "Flame"]], "sunburst", (view) => charts.forEach((c) => c.setView(view))),
    h("div", { class: "search" }, search, found));
  const half = (at: Side) => h("div", { class: "half" },
    h("h3", { class: at ? "new" : "old" }, h("span", { class: "badge" }, SIDE_NAMES[at]), " ", data.paths[at]), charts[at].element, notes[at], tables[at]);
  const rows = functionRows(diff);
  const section = (id: string, title: string, ...children: (Node | null)[]) =>
    h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), ...children);
  const links = [["calls", "Calls"], ["paths", "Paths in one run only"], ["functions", "Functions"]] as const;
  const folded = tree.paths.length > 0 && data.tree.folded > 0 ? h("p", { class: "note" }, `${plural(data.tree.folded, "small context")} folded to keep this file small.`) : null;
  const omitted = data.functions.omitted > 0 ? h("p", { class: "note" }, `${plural(data.functions.omitted, "function")} with the smallest differences left out of this file.`) : null;
  const per = data.calls ? `, means of one call of ${data.name}` : "";
  document.body.classList.add("comparison");
  document.body.prepend(patterns(), header(diff),
    h("nav", { class: "sections", "aria-label": "Sections" }, ...links.map(([id, name]) => h("a", { href: `#${id}` }, name))),
    h("main", {},
      section("calls", "Calls", controls, crumbs, h("div", { class: "stage" }, h("div", {}, h("div", { class: "halves" }, half(0), half(1)), legend, folded), side)),
      section("paths", `Paths that only one run ${data.unknown.includes(true) ? "has" : "took"}${per}`, extras.element),
      section("functions", `Functions${per}`, table.element, omitted)));
  // Each chart is laid out once: the weight before the tree.
  for (const at of SIDES) {
    charts[at].setWeight(weight);
    charts[at].setTree(tree.frames[at]);
  }
  go(tree.paths[0]);
  fill();
}

function callers(path: DiffPath): string {
  const frame = path.frames[1] ?? path.frames[0];
  return frame ? pathTo(frame).slice(0, -1).reverse().map((f) => f.name).join(" < ") : "";
}

main();
markReady();
