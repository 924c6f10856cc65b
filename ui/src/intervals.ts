// SPDX-License-Identifier: MIT OR Apache-2.0
// Intervals between markers: which kinds occurred, how long they were, where they began, the longest of them.

import type { Data, IntervalKind, LongestInterval, SiteRow } from "./data.ts";
import { h, segmented } from "./dom.ts";
import { count, duration, exact, percent, plural, share } from "./format.ts";
import { linesButton } from "./lines.ts";
import { LogHistogram } from "./loghist.ts";
import { input } from "./served.ts";
import { type Column, SortedTable } from "./tables.ts";

/** Frames of a stack that fit in a cell. */
const FRAMES = 3;

/** Function names from the innermost frame outwards. */
function stack(data: Data, context: number): string[] {
  const names: string[] = [];
  for (let at = context; at >= 0; at = data.contexts.parent[at]) names.push(data.funcs.name[data.contexts.func[at]]);
  return names;
}

function inLine(data: Data, context: number, frames = FRAMES): string {
  const names = stack(data, context);
  if (names.length === 0) return "[unknown]";
  return names.slice(0, frames).concat(names.length > frames ? ["…"] : []).join(" < ");
}

function frames(data: Data, title: string, context: number, address = ""): HTMLElement {
  const names = stack(data, context);
  return h("div", { class: "frames" }, h("h4", {}, title, address ? h("code", {}, ` ${address}`) : null),
    h("ol", {}, ...(names.length > 0 ? names : ["[unknown]"]).map((name) => h("li", {}, name))));
}

/** A command to type, with a button that copies it. */
export function command(text: string): HTMLElement {
  const code = h("code", {}, text);
  const done = h("span", { class: "note", role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // No clipboard for this page: select the text, so that the keyboard can copy it.
      getSelection()?.selectAllChildren(code);
      done.textContent = "selected";
      return;
    }
    done.textContent = "copied";
  };
  return h("div", { class: "command" }, code, h("button", { type: "button", class: "copy", click: () => void copy() }, "Copy"), done);
}

const time = <Row>(head: string, key: (row: Row) => number, title = ""): Column<Row> => ({ head, title, key, show: (row) => duration(key(row)) });
const number = <Row>(head: string, key: (row: Row) => number, title = ""): Column<Row> => ({ head, title, key, show: (row) => count(key(row)) });

function kindTable(data: Data, choose: (kind: IntervalKind) => void): SortedTable<IntervalKind> {
  return new SortedTable<IntervalKind>({
    caption: "kinds of intervals",
    columns: [
      { head: "interval", key: (k) => k.name, show: (k) => k.name },
      { head: "count", key: (k) => k.ns.count, show: (k) => exact(k.ns.count) },
      time("total", (k) => k.ns.sum),
      time("mean", (k) => Math.floor(k.ns.mean)),
      time("p50", (k) => k.ns.p50),
      time("p90", (k) => k.ns.p90),
      time("p99", (k) => k.ns.p99),
      time("max", (k) => k.ns.max),
      number("p50 insns", (k) => k.insns.p50),
      number("max insns", (k) => k.insns.max),
      { head: "from", key: (k) => k.from, show: (k) => k.from },
      { head: "to", key: (k) => k.to, show: (k) => k.to },
    ],
    sort: 7,
    choose,
    chooseLabel: "Show its histograms",
    empty: data.intervals.length > 0 ? "" : "No interval was seen in this run.",
  });
}

/** `showAt` goes to an interval on the timeline. */
export function intervals(data: Data, showAt: ((kind: string, interval: LongestInterval) => void) | null): HTMLElement {
  if (data.intervals.length === 0) return h("p", { class: "note" }, "No interval between markers was seen in this run.");
  let chosen = data.intervals[0];
  let logCounts = true;
  const heading = h("h3", { class: "interval-name" });
  const notes = h("p", { class: "note" });
  const byTime = new LogHistogram("Time", "ns");
  const byInsns = new LogHistogram("Instructions", "insns");
  const sites = new SortedTable<SiteRow>({
    caption: "where intervals began",
    columns: [
      { head: "share", title: "Of the time of all", key: (r) => r.ns, show: (r) => percent(share(r.ns, chosen.ns.sum)), bar: (r) => share(r.ns, chosen.ns.sum) },
      { head: "count", key: (r) => r.count, show: (r) => exact(r.count) },
      time("total", (r) => r.ns),
      time("max", (r) => r.max_ns),
      number("insns", (r) => r.insns),
      { head: "began in", key: (r) => inLine(data, r.context), show: (r) => inLine(data, r.context) },
    ],
    sort: 0,
    filter: (r) => stack(data, r.context).join(" "),
    detail: (r) => {
      const more = r.contexts > 1 ? h("p", { class: "note" }, `The heaviest of ${plural(r.contexts, "context")} with the same innermost frames.`) : null;
      return h("div", {}, frames(data, "Began in", r.context), more);
    },
    chooseLabel: "Show the whole stack",
    empty: "Nothing is known of where they began.",
  });
  const omitted = h("p", { class: "note" });
  const taskName = (r: LongestInterval) => {
    const task = data.tasks[r.task];
    return task ? `${task.comm} [${task.pid}]` : "";
  };
  const longest = new SortedTable<LongestInterval>({
    caption: "the longest intervals",
    columns: [
      time("time", (r) => r.ns),
      { head: "insns", key: (r) => r.insns, show: (r) => exact(r.insns) },
      { head: "CPU", key: (r) => r.cpu, show: (r) => String(r.cpu) },
      { head: "began at ns", key: (r) => r.start_ns, show: (r) => exact(r.start_ns) },
      { head: "task", key: taskName, show: taskName },
      { head: "began in", key: (r) => inLine(data, r.from), show: (r) => inLine(data, r.from) },
      { head: "ended in", key: (r) => inLine(data, r.to, 1), show: (r) => inLine(data, r.to, 1) },
    ],
    sort: 0,
    filter: (r) => `${taskName(r)} ${stack(data, r.from).join(" ")} ${stack(data, r.to).join(" ")}`,
    detail: (r) => h("div", {},
      h("div", { class: "both-frames" }, frames(data, "Began at", r.from, r.from_ip), frames(data, "Ended at", r.to, r.to_ip)),
      h("p", { class: "note" }, "Every instruction of it:"),
      command(`kprism script insns${input} --cpu ${r.cpu} --from ${r.start_ns}ns --to ${r.start_ns + r.ns}ns`),
      linesButton({ cpu: r.cpu, task: null }, r.start_ns, r.start_ns + r.ns, r.insns)?.element ?? null,
      showAt ? h("button", { type: "button", class: "more show-at", click: () => showAt(chosen.name, r) }, "Show it on the timeline") : null),
    chooseLabel: "Show both stacks, and how to see its instructions",
    empty: "None.",
  });
  const draw = () => {
    byTime.show(chosen.name, chosen.ns, logCounts);
    byInsns.show(chosen.name, chosen.insns, logCounts);
  };
  const show = (kind: IntervalKind) => {
    chosen = kind;
    heading.replaceChildren(kind.name, h("span", { class: "scope-of" }, ` from ${kind.from} to ${kind.to}, ${kind.per_task ? "in one task" : "on one CPU"}`));
    const said: string[] = [];
    if (kind.restarted > 0) said.push(`${exact(kind.restarted)} began again before they ended: the later beginning counted.`);
    if (kind.unfinished > 0) said.push(`${exact(kind.unfinished)} had no end: data was lost, or the recording ended.`);
    if (kind.halts) said.push(`The CPU halted ${plural(kind.halts, "time")} in one: it ended there, and another one begins where the CPU wakes.`);
    notes.textContent = said.join(" ");
    sites.setRows(kind.sites);
    omitted.textContent = kind.sites_omitted > 0 ? `${plural(kind.sites_omitted, "place")} with less time left out of this file.` : "";
    longest.setRows(kind.longest);
    draw();
  };
  const kinds = kindTable(data, show);
  kinds.setRows(data.intervals, chosen);
  const scale = segmented<"log" | "linear">("Count axis", [["log", "Log counts"], ["linear", "Linear counts"]], "log", (value) => {
    logCounts = value === "log";
    draw();
  });
  show(chosen);
  return h("div", {}, kinds.element,
    h("div", { class: "interval-head" }, heading, scale), notes,
    h("div", { class: "histograms" }, byTime.element, byInsns.element),
    h("h3", {}, "The longest"), longest.element,
    h("h3", {}, "Where they began"), sites.element, omitted);
}
