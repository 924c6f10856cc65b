// SPDX-License-Identifier: MIT OR Apache-2.0
// The page: reads the embedded data, builds the sections, connects the controls.

import "uplot/dist/uPlot.min.css";
import "./style.css";
import "./plots.css";
import "./lanes.css";
import { Chart, type View, breadcrumbs } from "./chart.ts";
import { ORIGINS, swatch } from "./color.ts";
import { type Data, type Frame, type SyscallRow, type TaskRow, type TreeData, type Weight, readData, readTree } from "./data.ts";
import { h, segmented } from "./dom.ts";
import { durations } from "./durations.ts";
import { count, duration, exact, percent, plural, printable, share, weightName } from "./format.ts";
import { sectionLinks } from "./fragment.ts";
import { Histogram } from "./histogram.ts";
import { intervals } from "./intervals.ts";
import { Lanes } from "./lanes.ts";
import { account, isWhole, losses, wholeness } from "./losses.ts";
import { momentParts, singlesList } from "./moments.ts";
import { partsTable } from "./parts.ts";
import { panel } from "./panel.ts";
import { chartTable } from "./behind-chart.ts";
import { ready } from "./plots.ts";
import { step } from "./ready.ts";
import { searchKey } from "./search-key.ts";
import { type FunctionRow, functionRows, syscallRows } from "./rows.ts";
import { sourcePanel } from "./source.ts";
import { type Column, SortedTable } from "./tables.ts";
import { themeButton } from "./theme.ts";
import { timeline } from "./timeline.ts";
import { fetchedTrees } from "./trees.ts";

/** Who recorded the run: `source` is where its streams came from. */
function recordedBy(source: string, durations: boolean): string {
  switch (source) {
    case "lab": return durations ? "traced by the guest's own kernel" : "seen from outside the guest";
    case "host": return durations ? "traced by the machine's own kernel" : "recorded on this machine";
    default: return "imported trace";
  }
}

function header(data: Data): HTMLElement {
  const head = data.header;
  const fact = (name: string, value: string, alert = false) => h("div", { class: alert ? "fact alert" : "fact" }, h("dt", {}, name), h("dd", {}, value));
  const own = data.durations;
  const facts = h("dl", { class: "facts-line" },
    own ? fact("calls", exact(own.calls)) : fact("instructions", exact(head.instructions)),
    fact("span", duration(head.span_ns)),
    fact("clock", head.clock),
    fact("CPUs", String(head.vcpus)),
    fact("tasks", String(data.tasks.length)),
    fact("account", wholeness(head.account), !isWhole(head.account)));
  if (head.exit_code !== null) facts.append(fact("exit code", String(head.exit_code), head.exit_code !== 0));
  const about = [head.kernel && `Linux ${head.kernel}`, recordedBy(head.source, !!own), head.created].filter(Boolean).join(" · ");
  const warning = head.stopped ? h("p", { class: "warning" }, `Recording ended early: ${head.stopped}`) : null;
  return h("header", {},
    h("div", { class: "title" }, h("span", { class: "brand" }, "kprism"), h("h1", {}, head.command || "imported trace"), themeButton()),
    h("p", { class: "about" }, about), facts, warning);
}

function scopePicker(data: Data, pick: (index: number) => void): HTMLSelectElement {
  const select = h("select", { id: "scope", "aria-label": "Scope" });
  const groups: [TreeData["scope"], string][] = [["all", "Run"], ["task", "One task"], ["syscall", "One system call, all callers"]];
  for (const [scope, label] of groups) {
    const group = h("optgroup", { label });
    data.trees.forEach((tree, i) => {
      if (tree.scope === scope) group.append(h("option", { value: i }, tree.label));
    });
    if (group.childElementCount > 0) select.append(group);
  }
  select.addEventListener("change", () => pick(Number(select.value)));
  return select;
}

interface FunctionTable {
  element: HTMLElement;
  /** Shows rows; shares are of `whole` instructions. */
  show(rows: FunctionRow[], whole: number): void;
}

function functionTable(find: (name: string) => void, source: (row: FunctionRow) => HTMLElement): FunctionTable {
  let whole = 0;
  const table = new SortedTable<FunctionRow>({
    caption: "functions",
    columns: [
      { head: "self", title: "Share of the instructions in the function itself", key: (r) => r.self_insns, show: (r) => percent(share(r.self_insns, whole)), bar: (r) => share(r.self_insns, whole) },
      { head: "self insns", key: (r) => r.self_insns, show: (r) => count(r.self_insns) },
      { head: "total insns", title: "With callees; recursion counted once", key: (r) => r.total_insns, show: (r) => count(r.total_insns), bar: (r) => share(r.total_insns, whole) },
      { head: "self time", title: "On a CPU", key: (r) => r.self_ns, show: (r) => duration(r.self_ns) },
      { head: "total time", title: "On a CPU, with callees; recursion counted once", key: (r) => r.total_ns, show: (r) => duration(r.total_ns) },
      { head: "calls", key: (r) => r.calls, show: (r) => exact(r.calls) },
      { head: "function", key: (r) => r.name, show: (r) => r.name },
      { head: "module", key: (r) => r.module, show: (r) => r.module },
      { head: "source", title: "Source lines and instructions, with counts", key: (r) => r.name, show: () => "source", node: source },
    ],
    sort: 1,
    filter: (r) => `${r.name} ${r.module}`,
    choose: (r) => find(r.name),
    chooseLabel: "Highlight in the chart",
    empty: "No function was decoded.",
  });
  const show = (rows: FunctionRow[], all: number) => {
    whole = all;
    table.setRows(rows);
  };
  return { element: table.element, show };
}

function syscallTable(show: (row: SyscallRow) => void): SortedTable<SyscallRow> {
  const time = (head: string, key: (r: SyscallRow) => number, title = "") => ({ head, title, key, show: (r: SyscallRow) => duration(key(r)) });
  return new SortedTable<SyscallRow>({
    caption: "system calls",
    columns: [
      { head: "syscall", key: (r) => r.name, show: (r) => r.name },
      { head: "count", key: (r) => r.count, show: (r) => exact(r.count) },
      time("wall", (r) => r.wall_ns, "From entry to return, all calls together, waiting included"),
      time("average", (r) => r.average_ns),
      time("p50", (r) => r.p50_ns),
      time("p90", (r) => r.p90_ns),
      time("p99", (r) => r.p99_ns),
      time("max", (r) => r.max_ns),
      time("on CPU", (r) => r.on_cpu_ns, "The part of the wall time on a CPU"),
      { head: "kernel insns", key: (r) => r.insns, show: (r) => count(r.insns) },
    ],
    sort: 2,
    filter: (r) => r.name,
    choose: show,
    chooseLabel: "Show its latency histogram",
    empty: "No system call in this scope.",
  });
}

function taskTable(data: Data, choose: (task: number) => void): SortedTable<TaskRow> {
  const both = (t: TaskRow) => (data.durations ? t.ns : t.user_insns + t.kernel_insns);
  const whole = data.tasks.reduce((sum, t) => sum + both(t), 0);
  const insns: Column<TaskRow>[] = [
    { head: "instructions", key: both, show: (t) => count(both(t)) },
    { head: "user", key: (t) => t.user_insns, show: (t) => count(t.user_insns) },
    { head: "kernel", key: (t) => t.kernel_insns, show: (t) => count(t.kernel_insns) },
  ];
  const syscalls: Column<TaskRow>[] = [{ head: "syscalls", key: (t) => t.syscalls, show: (t) => exact(t.syscalls) }];
  const table = new SortedTable<TaskRow>({
    caption: "tasks",
    columns: [
      { head: "comm", key: (t) => t.comm, show: (t) => t.comm },
      { head: "pid", key: (t) => t.pid, show: (t) => String(t.pid) },
      { head: "tgid", key: (t) => t.tgid, show: (t) => String(t.tgid) },
      { head: "share", key: both, show: (t) => percent(share(both(t), whole)), bar: (t) => share(both(t), whole) },
      ...(data.durations ? [] : insns),
      { head: "on CPU", key: (t) => t.ns, show: (t) => duration(t.ns) },
      ...(data.durations ? [] : syscalls),
    ],
    sort: 3,
    filter: (t) => `${t.comm} ${t.pid}`,
    choose: (t) => choose(data.tasks.indexOf(t)),
    chooseLabel: "Show this task alone",
    empty: "No task was seen.",
  });
  table.setRows(data.tasks);
  return table;
}

function main(): void {
  step("program");
  const data = readData();
  step("data");
  // Runs of durations have no instructions.
  let weight: Weight = data.trees[0]?.insns.some((n) => n > 0) ? "insns" : "ns";
  let frames: Frame[] = [];
  const trees = new Map<number, Frame[]>();

  const crumbs = h("nav", { class: "crumbs", "aria-label": "Path to the focus" });
  const side = h("aside", { class: "panel", "aria-live": "off" });
  const found = h("output", { class: "found", for: "search" });
  const folded = h("p", { class: "note", id: "folded" });
  const scopeName = h("span", { class: "scope-name" });
  const functionNote = h("p", { class: "note" });
  const source = sourcePanel(data);
  const ofName = (name: string, module: string | null) => {
    const own = module === null ? data.syscalls.find((row) => printable(row.name) === name)?.func : undefined;
    // Texts of the timeline are made printable; the source is found by the name as it is.
    const asItIs = (all: string[], text: string) => all.find((own) => printable(own) === text) ?? text;
    if (module !== null) return source.button(asItIs(data.funcs.name, name), asItIs(data.modules, module), `Source and instructions of ${name}, all calls`);
    return own === undefined ? null : source.button(data.funcs.name[own], data.modules[data.funcs.module[own]] ?? "", `Source and instructions of ${data.funcs.name[own]}, all calls`);
  };
  const line = data.timeline && data.timeline.lanes.length > 0 ? new Lanes(data.timeline, (moment, now) => momentParts(data, moment, ofName, now)) : null;
  step("timeline");
  const showPanel = (frame: Frame) => {
    side.replaceChildren(panel(frame, frames[0], weight, (to) => chart.zoom(to)));
    if (frame.func < 0 || data.durations) return;
    side.append(source.button(frame.name, frame.module, "Source and instructions"));
    if (!line) return;
    const longest = line.singles.of("calls", frame.name, null).slice(0, 3);
    const list = singlesList("Its longest single calls", data.timeline!, longest, line.singles.merged("calls"), (single) => line.go(single));
    side.append(list ?? h("p", { class: "note" }, "No single call of it is on the timeline: those of 10 µs and more are."));
  };
  const chart = new Chart({
    focus: (frame) => {
      if (table.open) table.dispatchEvent(new Event("toggle"));
      crumbs.replaceChildren(breadcrumbs(frame, (to) => chart.zoom(to)));
      showPanel(frame);
    },
    point: (frame) => frames.length > 0 && showPanel(frame ?? chart.focus),
  });
  chart.setWeight(weight);
  const table = chartTable(chart);
  const search = h("input", { type: "search", id: "search", placeholder: "Search functions…  ( / )", "aria-label": "Search functions", autocomplete: "off", spellcheck: "false" });
  const runSearch = () => {
    const result = chart.search(search.value);
    found.textContent = result ? `${plural(result.functions, "function")} in ${plural(result.contexts, "context")}, ${percent(result.fraction)} of ${weightName(weight)}` : "";
  };
  search.addEventListener("input", runSearch);
  searchKey(search);

  const histogram = new Histogram();
  const slow = h("div", { class: "slow" });
  let within: number | null = null;
  const showCall = (row: SyscallRow | null) => {
    histogram.show(row);
    const found = row && line ? line.singles.of("task", row.name, within) : [];
    slow.replaceChildren(singlesList(`The longest calls of ${row?.name}`, data.timeline!, found, line?.singles.merged("task") ?? 0, (single) => line?.go(single)) ?? "");
  };
  const functions = functionTable((name) => {
    search.value = name;
    runSearch();
    document.getElementById("calls")?.scrollIntoView({ behavior: "auto", block: "start" });
  }, (row) => source.button(row.name, row.module, "source"));
  const syscalls = syscallTable(showCall);
  const parts = partsTable(showCall);
  const showParts = (value: "latency" | "parts") => {
    syscalls.element.hidden = value !== "latency";
    parts.element.hidden = value !== "parts";
  };
  showParts("latency");
  const syscallView = segmented<"latency" | "parts">("System call view", [["latency", "Latency"], ["parts", "Where the time went"]], "latency", showParts);
  const pick = (index: number) => {
    const tree = data.trees[index];
    frames = trees.get(index) ?? readTree(data, tree);
    trees.set(index, frames);
    chart.setTree(frames);
    runSearch();
    const { contexts, insns } = tree.folded;
    folded.textContent = contexts > 0
      ? `${plural(contexts, "small context")} with ${percent(share(insns, frames[0].total.insns))} of the instructions folded to keep this file small; the run folder has them all.`
      : "";
    folded.append(fetched.whole(index) ?? "");
    const { rows, note } = functionRows(data, tree, frames);
    functions.show(rows, frames[0].total.insns);
    functionNote.textContent = note;
    const calls = syscallRows(data, tree);
    const first = calls.find((row) => tree.scope === "syscall" && row.func === tree.id) ?? calls.reduce<SyscallRow | null>((a, b) => (a && a.wall_ns >= b.wall_ns ? a : b), null);
    syscalls.setRows(calls, first);
    parts.setRows(calls, first);
    within = tree.scope === "task" ? Number(/\[(\d+)\]$/.exec(tree.label)?.[1] ?? NaN) : null;
    showCall(first);
    scopeName.textContent = tree.scope === "all" ? "" : `within ${tree.label}`;
  };
  const picker = scopePicker(data, pick);
  const fetched = fetchedTrees(data, picker, (index) => {
    trees.delete(index);
    pick(index);
  });
  const tasks = taskTable(data, (task) => {
    const index = data.trees.findIndex((tree) => tree.scope === "task" && tree.id === task);
    if (index < 0) return fetched.of("task", task);
    picker.value = String(index);
    pick(index);
  });
  const omitted = data.trees_omitted.tasks > 0 ? h("p", { class: "note" }, `The chart can show the ${data.trees.filter((t) => t.scope === "task").length} largest tasks one by one; ${plural(data.trees_omitted.tasks, "smaller one is", "smaller ones are")} only part of the whole.`) : null;

  const legend = h("ul", { class: "legend", "aria-label": "Colours" });
  for (const [origin, name] of ORIGINS) {
    const dot = h("span", { class: "dot" });
    dot.style.background = swatch(origin);
    legend.append(h("li", {}, dot, name));
  }
  legend.append(h("li", {}, "nothing drawn: the caller itself"));
  const controls = h("div", { class: "controls" }, picker, fetched.told,
    segmented<Weight>("Weight", [["insns", "Instructions"], ["ns", "Time"]], weight, (value) => {
      weight = value;
      chart.setWeight(value);
      runSearch();
    }),
    segmented<View>("View", [["sunburst", "Sunburst"], ["icicle", "Icicle"], ["flame", "Flame"]], "sunburst", (view) => {
      chart.setView(view);
      if (table.open) table.dispatchEvent(new Event("toggle"));
    }),
    h("div", { class: "search" }, search, found));

  const section = (id: string, title: string, ...children: (Node | string | null)[]) =>
    h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), ...children);
  const ofFlow: [string, string][] = [["calls", "Calls"], ["timeline", "Timeline"], ["functions", "Functions"], ["source", "Source"], ["syscalls", "System calls"], ["intervals", "Intervals"], ["tasks", "Tasks"], ["losses", "Lost and undecoded"]];
  const ofDurations: [string, string][] = [["calls", "Calls"], ["durations", "Durations"], ["timeline", "Timeline"], ["tasks", "Tasks"], ["losses", "Account"]];
  const nav = sectionLinks(data.durations ? ofDurations : ofFlow);
  const named = (part: HTMLElement) => {
    part.querySelector("h2")?.append(" ", scopeName.cloneNode(true));
    return part;
  };
  const functionSection = named(section("functions", "Functions", functionNote, functions.element));
  const syscallSection = named(section("syscalls", "System calls", h("div", { class: "controls" }, syscallView), h("div", { class: "split" }, h("div", {}, syscalls.element, parts.element), h("div", { class: "beside-table" }, histogram.element, slow))));
  const callSection = section("calls", "Calls", controls, crumbs, h("div", { class: "stage" }, h("div", {}, chart.element, legend, table, folded), side));
  const taskSection = section("tasks", "Tasks", tasks.element, omitted);
  if (data.durations) {
    const calls = timeline(data);
    document.body.prepend(header(data), nav, h("main", {}, callSection,
      section("durations", "Durations", durations(data, calls.show)),
      section("timeline", "Timeline", calls.element), taskSection,
      section("losses", "Account", account(data.header.account))));
  } else {
    document.body.prepend(header(data), nav, h("main", {}, callSection, section("timeline", "Timeline", line ? line.element : h("p", { class: "note" }, "This run has no event with a time.")), functionSection, section("source", "Source", source.element), syscallSection,
      section("intervals", "Intervals", h("p", { class: "note" }, "Delta profiling: from one marker to another, over the whole run. Choose a kind for its histograms; `kprism report delta --from … --to … --html` adds your own."), intervals(data, line && ((kind, at) => line.goAt(`interval ${kind}`, at.start_ns, at.ns)))),
      taskSection,
      section("losses", "Lost and undecoded", losses(data))));
  }
  step("sections");
  new MutationObserver(() => {
    for (const name of document.querySelectorAll("h2 .scope-name")) name.textContent = scopeName.textContent;
  }).observe(scopeName, { childList: true });
  addEventListener("themechange", () => histogram.redraw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => histogram.redraw());
  pick(0);
  step("first scope");
  ready();
}

main();
