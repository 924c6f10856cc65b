// SPDX-License-Identifier: MIT OR Apache-2.0
// Where the time of system calls went: a stacked bar and means of one call.

import type { SyscallRow } from "./data.ts";
import { h } from "./dom.ts";
import { duration, exact, percent, share } from "./format.ts";
import { type Column, SortedTable } from "./tables.ts";

type Part = "entry" | "body" | "interrupts" | "off" | "exit";

const PARTS: [Part, string, string][] = [
  ["entry", "entry", "From the system call instruction to the call of its body"],
  ["body", "body", "The system call itself"],
  ["interrupts", "interrupts", "Interrupts that came meanwhile"],
  ["off", "off CPU", "Waiting, or pushed aside by other tasks"],
  ["exit", "exit", "From the body's end to user code: pending work, signals, the way out"],
];

function part(row: SyscallRow, name: Part): number {
  switch (name) {
    case "entry": return row.entry_ns;
    case "body": return Math.max(0, row.on_cpu_ns - row.entry_ns - row.interrupts_ns - row.exit_ns);
    case "interrupts": return row.interrupts_ns;
    case "off": return Math.max(0, row.wall_ns - row.on_cpu_ns);
    case "exit": return row.exit_ns;
  }
}

function bar(row: SyscallRow): HTMLElement {
  const shares = PARTS.map(([name, title]) => ({ name, title, fraction: share(part(row, name), row.wall_ns) }));
  const box = h("div", { class: "parts-bar", role: "img", "aria-label": shares.map(({ title, fraction }) => `${title} ${percent(fraction)}`).join(", ") });
  for (const { name, title, fraction } of shares) {
    const piece = h("span", { class: `part ${name}`, title: `${title}: ${percent(fraction)}` });
    piece.style.width = `${fraction * 100}%`;
    box.append(piece);
  }
  return box;
}

export function partsTable(choose: (row: SyscallRow) => void): { element: HTMLElement; setRows: SortedTable<SyscallRow>["setRows"] } {
  const mean = (row: SyscallRow, name: Part) => Math.floor(part(row, name) / Math.max(1, row.count));
  const column = ([name, head, title]: [Part, string, string]): Column<SyscallRow> => ({
    head, title,
    key: (row) => mean(row, name),
    show: (row) => `${duration(mean(row, name))} ${percent(share(part(row, name), row.wall_ns))}`,
    node: (row) => h("span", {}, duration(mean(row, name)), h("small", {}, percent(share(part(row, name), row.wall_ns)))),
  });
  const table = new SortedTable<SyscallRow>({
    caption: "parts of system calls",
    columns: [
      { head: "syscall", key: (r) => r.name, show: (r) => r.name },
      { head: "count", key: (r) => r.count, show: (r) => exact(r.count) },
      { head: "wall", title: "All calls together", key: (r) => r.wall_ns, show: (r) => duration(r.wall_ns) },
      { head: "average", key: (r) => r.average_ns, show: (r) => duration(r.average_ns) },
      { head: "where it went", key: (r) => share(part(r, "off"), r.wall_ns), show: () => "", node: bar },
      ...PARTS.map(column),
    ],
    sort: 2,
    filter: (r) => r.name,
    choose,
    chooseLabel: "Show its latency histogram",
    empty: "No system call in this scope.",
  });
  const legend = h("ul", { class: "legend", "aria-label": "Parts" }, ...PARTS.map(([name, head]) => h("li", {}, h("span", { class: `dot part ${name}` }), head)));
  return { element: h("div", { class: "parts" }, table.element, legend), setRows: (rows, chosen) => table.setRows(rows, chosen) };
}
