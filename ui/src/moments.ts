// SPDX-License-Identifier: MIT OR Apache-2.0
// A single call, interval or time slice of the timeline: where it is, which instructions it ran, and the commands that print
// them. Finds the longest single calls of a function.

import "./moments.css";
import type { Data } from "./data.ts";
import { h } from "./dom.ts";
import { duration, exact, printable } from "./format.ts";
import { command } from "./intervals.ts";
import { type Lane, type Row, type TimelineData, unended } from "./lanes-data.ts";
import { linesButton } from "./lines.ts";
import { input, quoted, served } from "./served.ts";

/** Times in ns of the run's clock. `task` or `cpu` says whose instructions are its own. */
export interface Moment {
  name: string;
  what: string;
  from: number;
  to: number;
  task: number | null;
  cpu: number | null;
  /** Instructions that it ran, if that is known. */
  insns: number | null;
  module: string | null;
}

/** The moment of an item; null if nothing ran in it, or its task is not known. */
export function momentOf(data: TimelineData, lane: Lane, row: Row, i: number): Moment | null {
  if (row.long[i] !== 1) return null;
  const { args, values, group, name, words } = lane.data;
  const arg = (wanted: string): number | null => {
    const n = args.findIndex(([own]) => own === wanted);
    return n < 0 ? null : (values?.[row.item[i]! * args.length + n] ?? null);
  };
  let [task, cpu]: [number | null, number | null] = [null, null];
  if (group === "task" || group === "calls") {
    const pid = /\[(\d+)\]$/.exec(name)?.[1];
    if (pid !== undefined) task = Number(pid);
    // Every CPU has its own idle task, and none of them a number.
    else if (name === "idle") cpu = arg("CPU");
  } else if (group === "cpu") cpu = Number(/^CPU (\d+)/.exec(name)?.[1] ?? NaN);
  else if (words[0] === "interval") cpu = arg("CPU");
  if (task === null && (cpu === null || Number.isNaN(cpu))) return null;
  const from = data.from_ns + row.start[i]!;
  const module = arg("module");
  return {
    name: data.texts[row.label[i]!]!, what: words[0], from, to: from + Math.max(1, row.end[i]! - row.start[i]!), task, cpu,
    insns: arg("instructions"), module: module === null ? null : (data.texts[module] ?? null),
  };
}

/** The commands that print a moment's instructions, and that go there. */
function commands(moment: Moment, lab: boolean): string[] {
  const whose = moment.task !== null ? `--task ${moment.task}` : `--cpu ${moment.cpu}`;
  const out = [`kprism script insns${input} ${whose} --from ${moment.from}ns --to ${moment.to}ns`];
  if (lab) out.push(`kprism lab goto${served ? ` ${quoted(served.run)}` : ""} --at ${moment.from}ns${moment.task === null ? ` --cpu ${moment.cpu}` : ""} --run-gdb`);
  return out;
}

/** The source of a function, if the page has or can get one. */
export type SourceOf = (name: string, module: string | null) => HTMLElement | null;

/** What can be seen of a moment: its instructions here if there is a server, which are fetched at once if `now`; else by
 * commands. */
export function momentParts(data: Data, moment: Moment, source: SourceOf, now: boolean): HTMLElement {
  const lines = linesButton({ cpu: moment.cpu, task: moment.task }, moment.from, moment.to, moment.insns);
  const all = commands(moment, data.header.source === "lab");
  const shared = moment.task !== null && data.tasks.some((task) => task.tgid === moment.task && task.pid !== moment.task);
  const out = h("div", { class: "moment" },
    h("h3", {}, `${moment.name}: its instructions`),
    h("p", { class: "note" }, `${moment.what}, ${duration(moment.to - moment.from)} from ${duration(moment.from)} of the run's clock on`,
      moment.insns === null ? "" : `; ${exact(moment.insns)} instructions`,
      shared ? "; the lines have those of the process's other threads, too" : "", "."),
    source(moment.name, moment.module), lines?.element ?? null,
    ...all.map((text, i) => h("div", {}, h("p", { class: "note" }, i === 0 ? "Every instruction of it:" : "The run once more, up to its begin:"), command(text))));
  if (now) lines?.show();
  return out;
}

/** A single call of the timeline. */
export interface Single {
  lane: Lane;
  row: Row;
  i: number;
  ns: number;
}

/** The longest calls of each name, in lanes of tasks (`task`) or of their calls (`calls`). */
export class Singles {
  private readonly by = new Map<string, Single[]>();

  constructor(private readonly lanes: Lane[], private readonly data: TimelineData, private readonly most: number) {}

  private index(): void {
    const all = new Map<string, Single[]>();
    for (const lane of this.lanes) {
      const { group, name } = lane.data;
      if (group !== "task" && group !== "calls") continue;
      const pid = name.slice(name.lastIndexOf("["));
      for (const row of lane.rows) {
        row.label.forEach((label, i) => {
          if (row.long[i] !== 1) return;
          const single = { lane, row, i, ns: row.end[i]! - row.start[i]! };
          for (const key of [`${group}\0${label}`, `${group}\0${label}\0${pid}`]) {
            const own = all.get(key);
            if (!own) all.set(key, [single]);
            else if (own.length < this.most || single.ns > own[own.length - 1]!.ns) {
              own.push(single);
              own.sort((a, b) => b.ns - a.ns);
              own.length = Math.min(own.length, this.most);
            }
          }
        });
      }
    }
    for (const [key, own] of all) this.by.set(key, own);
  }

  /** Those of one name, of one task if `pid` says which, longest first. */
  of(group: "task" | "calls", name: string, pid: number | null): Single[] {
    if (this.by.size === 0) this.index();
    const label = this.data.texts.indexOf(printable(name));
    return this.by.get(`${group}\0${label}${pid === null ? "" : `\0[${pid}]`}`) ?? [];
  }

  /** Items of a length that this file has only as sums: the list of longest ones may lack such. */
  merged(group: "task" | "calls"): number {
    return this.lanes.filter((lane) => lane.data.group === group).reduce((ns, lane) => Math.max(ns, lane.data.merged?.longest_ns ?? 0), 0);
  }
}

/** A list of single calls, each a button that goes there. */
export function singlesList(title: string, data: TimelineData, found: Single[], merged: number, go: (single: Single) => void): HTMLElement | null {
  if (found.length === 0) return null;
  const without = ({ lane, row, i }: Single): string => {
    const why = unended(data, lane, row.item[i]!);
    return why === null ? "" : `; ${why}`;
  };
  const items = found.map((single) => h("li", {}, h("button", { type: "button", class: "single", title: "Show it on the timeline, with its instructions", click: () => go(single) },
    h("span", { class: "value" }, duration(single.ns)), h("span", { class: "name" }, single.lane.data.name), h("span", { class: "note" }, `at ${duration(data.from_ns + single.row.start[single.i]!)}${without(single)}`))));
  const least = found[found.length - 1]!.ns;
  const note = least < merged ? h("p", { class: "note" }, `This file has some of less than ${duration(merged)} only as sums.`) : null;
  return h("div", { class: "singles" }, h("h4", {}, title), h("ol", {}, ...items), note);
}
