// SPDX-License-Identifier: MIT OR Apache-2.0
// The rows of the tables for the scope on show.

import type { Data, Frame, FunctionColumns, SyscallRow, TreeData } from "./data.ts";

export interface FunctionRow {
  name: string;
  module: string;
  calls: number;
  self_insns: number;
  total_insns: number;
  self_ns: number;
  total_ns: number;
}

function fromColumns(data: Data, columns: FunctionColumns, take: (row: number) => boolean): FunctionRow[] {
  const rows: FunctionRow[] = [];
  columns.func.forEach((func, i) => {
    if (!take(i)) return;
    rows.push({
      name: data.funcs.name[func],
      module: data.modules[data.funcs.module[func]] ?? "",
      calls: columns.calls[i],
      self_insns: columns.self_insns[i],
      total_insns: columns.total_insns[i],
      self_ns: columns.self_ns[i],
      total_ns: columns.total_ns[i],
    });
  });
  return rows;
}

/** Sums over a tree; recursion counts once. */
function fromFrames(frames: Frame[]): FunctionRow[] {
  const rows = new Map<number, FunctionRow>();
  const active = new Map<number, number>();
  const stack: [Frame, boolean][] = [[frames[0], false]];
  while (stack.length > 0) {
    const [frame, leave] = stack.pop()!;
    const depth = active.get(frame.func) ?? 0;
    if (leave) {
      active.set(frame.func, depth - 1);
      continue;
    }
    active.set(frame.func, depth + 1);
    stack.push([frame, true], ...frame.children.map((child): [Frame, boolean] => [child, false]));
    if (frame.func < 0) continue;
    let row = rows.get(frame.func);
    if (!row) {
      row = { name: frame.name, module: frame.module, calls: 0, self_insns: 0, total_insns: 0, self_ns: 0, total_ns: 0 };
      rows.set(frame.func, row);
    }
    row.calls += frame.calls;
    row.self_insns += frame.self.insns;
    row.self_ns += frame.self.ns;
    if (depth === 0) {
      row.total_insns += frame.total.insns;
      row.total_ns += frame.total.ns;
    }
  }
  return [...rows.values()];
}

export interface FunctionRows {
  rows: FunctionRow[];
  /** What is missing or approximate, for people. */
  note: string;
}

export function functionRows(data: Data, tree: TreeData, frames: Frame[]): FunctionRows {
  const left = (n: number, what: string) => (n > 0 ? `${n.toLocaleString("en-US")} of the smallest ${what} left out of this file.` : "");
  switch (tree.scope) {
    case "all":
      return { rows: fromColumns(data, data.functions, () => true), note: left(data.functions.omitted, "functions") };
    case "task": {
      const rows = fromColumns(data, data.functions_by_task, (i) => data.functions_by_task.task?.[i] === tree.id);
      return { rows, note: left(data.functions_by_task.omitted, "functions of tasks") };
    }
    case "syscall": {
      const note = tree.folded.contexts > 0 ? "Without what was folded away as small." : "";
      return { rows: fromFrames(frames), note };
    }
  }
}

export function syscallRows(data: Data, tree: TreeData): SyscallRow[] {
  return data.syscalls.filter((row) => row.task === (tree.scope === "task" ? tree.id : -1));
}
