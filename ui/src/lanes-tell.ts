// SPDX-License-Identifier: MIT OR Apache-2.0
// What the timeline says in words and numbers: an item, the sums of a range, what is on show as a table.

import { h } from "./dom.ts";
import { duration, exact, percent, plural, share } from "./format.ts";
import { type Lane, type Row, type Sum, type TimelineData, sums, touching, unended } from "./lanes-data.ts";
import { simpleTable } from "./plots.ts";

/** Rows of the sums and of the table. */
const ROWS = 12;
const TABLE = 300;

/** An item's name, place, and facts. */
export function itemLines(data: TimelineData, lane: Lane, row: Row, i: number): { title: string; below: string; lines: [string, string][] } {
  const item = row.item[i]!;
  const lines: [string, string][] = [];
  if (row.long[i] === 1) lines.push([unended(data, lane, item) === null ? "took" : "seen for", duration(row.end[i]! - row.start[i]!)]);
  lines.push(["from", duration(row.start[i]!)]);
  const { args, values } = lane.data;
  args.forEach(([name, unit], n) => {
    const value = values?.[item * args.length + n] ?? 0;
    lines.push([name, unit === "text" ? (data.texts[value] ?? "") : unit === "ns" ? duration(value) : exact(value)]);
  });
  return { title: data.texts[row.label[i]!]!, below: `${lane.data.words[0]} of ${lane.data.name}`, lines };
}

/** Sums of several lanes by label. */
function together(lanes: Lane[], from: number, to: number): { all: Sum[]; about: number } {
  const by = new Map<number, Sum>();
  let about = 0;
  for (const lane of lanes) {
    const own = sums(lane, from, to);
    about += own.about;
    for (const { label, items, ns } of own.all) {
      const sum = by.get(label) ?? { label, items: 0, ns: 0 };
      by.set(label, { label, items: sum.items + items, ns: sum.ns + ns });
    }
  }
  return { all: [...by.values()].filter((s) => s.items > 0 || s.ns > 0).sort((a, b) => b.ns - a.ns || b.items - a.items), about };
}

/** Sums of a range: time of each task, system calls, and how much of everything else. */
export function sumsOf(lanes: Lane[], data: TimelineData, [from, to]: [number, number], selected: boolean, clear: () => void): HTMLElement {
  const cpus = lanes.filter((lane) => lane.data.words[0] === "time slice");
  const calls = lanes.filter((lane) => lane.data.group === "task");
  const head = h("h3", {}, selected ? "Selected: " : "On show: ", duration(Math.round(to - from)));
  if (selected) head.append(" ", h("button", { type: "button", class: "clear", click: clear }, "Clear"));
  const part = (name: string, of: Lane[], what: string, columns: (sum: Sum) => string[], heads: string[]) => {
    const { all, about } = together(of, from, to);
    const rows = all.slice(0, ROWS).map((sum) => [data.texts[sum.label]!, ...columns(sum)]);
    const rest = all.slice(ROWS).reduce((sum, s) => ({ label: 0, items: sum.items + s.items, ns: sum.ns + s.ns }), { label: 0, items: 0, ns: 0 });
    if (all.length > ROWS) rows.push([`${exact(all.length - ROWS)} more`, ...columns(rest)]);
    const table = simpleTable(name, heads, rows);
    table.id = `sums-${what}`;
    const note = about > 0 ? h("p", { class: "note" }, `About: ${exact(about)} merged ones lie at the edges, and count in proportion.`) : "";
    return h("div", {}, h("h4", {}, name), all.length > 0 ? table : h("p", { class: "note" }, "None."), note);
  };
  const whole = (to - from) * Math.max(1, cpus.length);
  const others = lanes.filter((lane) => !cpus.includes(lane) && !calls.includes(lane) && lane.data.group !== "calls");
  const rows = others.map((lane) => {
    const all = sums(lane, from, to).all;
    const [items, ns] = [all.reduce((n, s) => n + s.items, 0), all.reduce((n, s) => n + s.ns, 0)];
    return [lane.data.name, exact(Math.round(items)), ns > 0 ? duration(Math.round(ns)) : ""];
  });
  return h("div", {}, head, h("div", { class: "sums-parts" },
    cpus.length > 0 ? part("Time of tasks", cpus, "tasks", (s) => [duration(Math.round(s.ns)), percent(share(s.ns, whole))], ["task", "on a CPU", "share"]) : null,
    part("System calls", calls, "syscalls", (s) => [exact(Math.round(s.items)), duration(Math.round(s.ns))], ["system call", "begun", "time in it"]),
    rows.length > 0 ? h("div", {}, h("h4", {}, "Other lanes"), simpleTable("Other lanes", ["lane", "begun", "time"], rows)) : null));
}

/** The visible items, lane by lane. */
export function itemTable(lanes: Lane[], data: TimelineData, [from, to]: [number, number]): HTMLElement {
  const rows: string[][] = [];
  let all = 0;
  for (const lane of lanes) {
    for (const row of lane.rows) {
      const [first, end] = touching(row, from, to);
      for (let i = first; i < end; i++) {
        if (row.end[i]! < from || all++ >= TABLE) continue;
        const { title, lines } = itemLines(data, lane, row, i);
        rows.push([lane.data.name, lane.data.words[0], title, duration(row.start[i]!), row.long[i] ? duration(row.end[i]! - row.start[i]!) : "", lines.slice(row.long[i] ? 2 : 1).map((line) => line.join(" ")).join(", ")]);
      }
    }
  }
  const note = all > TABLE ? `The first ${exact(TABLE)} of ${plural(all, "item")}; zoom in for others.` : plural(all, "item");
  return h("div", {}, h("p", { class: "note" }, note), simpleTable("What is on show", ["lane", "kind", "name", "from", "took", "more"], rows, 3));
}
