// SPDX-License-Identifier: MIT OR Apache-2.0
// Durations of functions: the table, the histogram of the one that was chosen, its longest calls.

import type { Data, DurationRow } from "./data.ts";
import { h, segmented } from "./dom.ts";
import { duration, exact, plural } from "./format.ts";
import { LogHistogram } from "./loghist.ts";
import { type Column, SortedTable } from "./tables.ts";
import { type Call, calls, taskName } from "./timeline.ts";

const time = <Row>(head: string, key: (row: Row) => number, title = ""): Column<Row> => ({ head, title, key, show: (row) => duration(key(row)) });

/** `show` is told which part of the timeline is asked for. */
export function durations(data: Data, show: (call: Call) => void): HTMLElement {
  const own = data.durations!;
  if (own.functions.length === 0) return h("p", { class: "note" }, "No call ended in this run.");
  const name = (row: DurationRow) => data.funcs.name[row.func];
  const module = (row: DurationRow) => data.modules[data.funcs.module[row.func]];
  let chosen = own.functions[0];
  let logCounts = true;
  const heading = h("h3", { class: "interval-name" });
  const histogram = new LogHistogram("Durations", "ns", "calls");
  const every = calls(data);
  const longest = new SortedTable<Call>({
    caption: "its longest calls",
    columns: [
      time("time", (c) => c.ns),
      time("from", (c) => c.start, "Since the first call of the timeline"),
      { head: "CPU", key: (c) => c.cpu, show: (c) => String(c.cpu) },
      { head: "task", key: (c) => taskName(data, c.task), show: (c) => taskName(data, c.task) },
    ],
    sort: 0,
    choose: show,
    chooseLabel: "Show it in the timeline",
    empty: "None of its calls is among the longest of all, which this file holds.",
  });
  const draw = () => histogram.show(name(chosen), chosen.ns, logCounts);
  const choose = (row: DurationRow) => {
    chosen = row;
    const gaps = row.gapped > 0 ? `, events lost in ${plural(row.gapped, "call")}` : "";
    heading.replaceChildren(name(row), h("span", { class: "scope-of" }, ` ${module(row)}${gaps}`));
    longest.setRows(every.filter((call) => call.func === row.func));
    draw();
  };
  // Where every call was kept, the tracer's share is known; otherwise only that it may be large.
  const share = (r: DurationRow) => (r.tracing === null ? "" : `${r.tracing.toFixed(2)} %`);
  const tracing: Column<DurationRow>[] = own.cost === null ? [] : [
    { head: "tracing", title: own.cost, key: (r) => r.tracing ?? (r.mark === "" ? -2 : -1), show: (r) => `${r.mark} ${share(r)}`.trim() },
  ];
  const table = new SortedTable<DurationRow>({
    caption: "durations of functions",
    columns: [
      { head: "count", key: (r) => r.count, show: (r) => exact(r.count) },
      time("total", (r) => r.total_ns, "From entry to exit; of recursion the outermost call only"),
      time("average", (r) => r.average_ns),
      ...tracing,
      time("self", (r) => r.self_ns, "On a CPU, without what it called and without interrupts"),
      time("off CPU", (r) => r.off_cpu_ns, "In it or in what it called"),
      time("interrupts", (r) => r.interrupts_ns, "In it or in what it called"),
      time("min", (r) => r.ns.min),
      time("p50", (r) => r.ns.p50),
      time("p90", (r) => r.ns.p90),
      time("p99", (r) => r.ns.p99),
      time("max", (r) => r.ns.max),
      { head: "function", key: name, show: name },
      { head: "module", key: module, show: module },
    ],
    sort: 1,
    filter: (r) => `${name(r)} ${module(r)}`,
    choose,
    chooseLabel: "Show its histogram and its longest calls",
    empty: "No call ended.",
  });
  table.setRows(own.functions, chosen);
  choose(chosen);
  const scale = segmented<"log" | "linear">("Calls axis", [["log", "Log counts"], ["linear", "Linear counts"]], "log", (value) => {
    logCounts = value === "log";
    draw();
  });
  const said: string[] = [];
  if (own.cost !== null) said.push(`${own.cost[0].toUpperCase()}${own.cost.slice(1)}.`);
  if (own.lost > 0) said.push(`${plural(own.lost, "event was", "events were")} lost.`);
  if (own.unfinished > 0) said.push(`${plural(own.unfinished, "call")} had no end.`);
  if (own.functions_omitted > 0) said.push(`${plural(own.functions_omitted, "function")} of shorter total left out of this file.`);
  return h("div", {}, h("p", { class: "note" }, said.join(" ")), table.element,
    h("div", { class: "interval-head" }, heading, scale),
    h("div", { class: "histograms" }, histogram.element, h("div", {}, longest.element)));
}
