// SPDX-License-Identifier: MIT OR Apache-2.0
// What the report crate embeds in the page (see html/embed.rs there), and trees decoded from it.

import type { TimelineData } from "./lanes-data.ts";

export interface Header {
  command: string;
  source: string;
  kernel: string;
  created: string;
  clock: string;
  vcpus: number;
  instructions: number;
  span_ns: number;
  lost_bytes: number;
  decode_errors: number;
  exit_code: number | null;
  stopped: string | null;
  /** How much of what happened is in the tables; null where an older kprism made them. */
  account: AccountEntry[] | null;
}

/** One count of an account; a count of null is not known. */
export interface AccountEntry {
  fate: "seen" | "kept" | "lost" | "not_understood" | "guessed";
  unit: string;
  count: number | null;
  places?: string[];
}

/** One merged tree in columns; parents come before their children, counts are without children. */
export interface TreeData {
  scope: "all" | "task" | "syscall";
  /** Task index or function index. */
  id: number;
  label: string;
  parent: number[];
  /** Function index; -1 the root, -2 contexts folded away, -3 - i the i-th name of a task. */
  ref: number[];
  kind: number[];
  calls: number[];
  insns: number[];
  ns: number[];
  folded: { contexts: number; insns: number; ns: number };
}

/** Function rows in columns. `task` only where rows are per task. */
export interface FunctionColumns {
  task?: number[];
  func: number[];
  calls: number[];
  self_insns: number[];
  total_insns: number[];
  self_ns: number[];
  total_ns: number[];
  omitted: number;
}

export interface SyscallRow {
  /** -1 for all tasks together. */
  task: number;
  func: number;
  name: string;
  count: number;
  wall_ns: number;
  average_ns: number;
  p50_ns: number;
  p90_ns: number;
  p99_ns: number;
  max_ns: number;
  on_cpu_ns: number;
  insns: number;
  entry_ns: number;
  interrupts_ns: number;
  exit_ns: number;
  /** Pairs of bin and count, flat; four bins an octave. */
  histogram: number[];
}

export interface TaskRow {
  pid: number;
  tgid: number;
  comm: string;
  user_insns: number;
  kernel_insns: number;
  ns: number;
  syscalls: number;
}

/** Durations, or instructions, of one kind of interval. */
export interface Values {
  count: number;
  sum: number;
  mean: number;
  min: number;
  p50: number;
  p90: number;
  p99: number;
  max: number;
  /** Smallest value, one more than the largest, count; flat. */
  bins: number[];
}

export interface SiteRow {
  /** Index into the contexts, -1 if unknown. */
  context: number;
  /** How many contexts with these innermost frames. */
  contexts: number;
  count: number;
  ns: number;
  insns: number;
  max_ns: number;
}

export interface LongestInterval {
  task: number;
  cpu: number;
  start_ns: number;
  ns: number;
  insns: number;
  from_ip: string;
  to_ip: string;
  from: number;
  to: number;
}

export interface IntervalKind {
  name: string;
  from: string;
  to: string;
  per_task: boolean;
  restarted: number;
  unfinished: number;
  halts: number | null;
  ns: Values;
  insns: Values;
  sites: SiteRow[];
  sites_omitted: number;
  longest: LongestInterval[];
}

export interface DurationRow {
  func: number;
  count: number;
  total_ns: number;
  average_ns: number;
  self_ns: number;
  off_cpu_ns: number;
  interrupts_ns: number;
  gapped: number;
  /** Percent of the total. */
  tracing: number | null;
  mark: string;
  ns: Values;
}

export interface Durations {
  calls: number;
  functions: DurationRow[];
  functions_omitted: number;
  /** Columns; times are from `from_ns` on. */
  slices: { from_ns: number; to_ns: number; task: number[]; cpu: number[]; func: number[]; depth: number[]; start_ns: number[]; ns: number[]; interrupt: number[] };
  slices_omitted: number;
  lost: number;
  unfinished: number;
  /** What tracing cost, where it was measured. */
  cost: string | null;
}

export interface ErrorRow {
  cpu: number;
  /** Hexadecimal: may exceed what a number holds exactly. */
  offset: string;
  time_ns: number;
  ip: string;
  kind: string;
}

export interface CpuRow {
  cpu: number;
  instructions: number;
  branches: number;
  errors: number;
  lost_bytes: number;
  first_ns: number;
  last_ns: number;
}

export interface Data {
  header: Header;
  funcs: { name: string[]; module: number[]; kernel: number[] };
  modules: string[];
  comms: string[];
  tasks: TaskRow[];
  trees: TreeData[];
  trees_omitted: { tasks: number; syscalls: number };
  functions: FunctionColumns;
  functions_by_task: FunctionColumns;
  syscalls: SyscallRow[];
  /** Of a flow. */
  timeline?: TimelineData;
  /** Kinds that occurred; a user's own comes first. */
  intervals: IntervalKind[];
  /** Calling contexts that intervals name: caller or -1, and function. */
  contexts: { parent: number[]; func: number[] };
  /** Of a run of durations, which has no instructions. */
  durations?: Durations;
  errors: ErrorRow[];
  errors_omitted: number;
  cpus: CpuRow[];
}

export const KINDS = ["root", "call", "tail", "syscall", "interrupt", "exception", "signal", "resumed"] as const;
export type Weight = "insns" | "ns";

/** Where code comes from; decides the colour. */
export type Origin = "task" | "program" | "library" | "kernel" | "module" | "interrupt" | "exception" | "folded";

/** A node with sums over its subtree. */
export interface Frame {
  index: number;
  parent: Frame | null;
  children: Frame[];
  depth: number;
  name: string;
  module: string;
  /** Function index or -1. */
  func: number;
  kind: (typeof KINDS)[number];
  origin: Origin;
  calls: number;
  self: Record<Weight, number>;
  total: Record<Weight, number>;
  /** Order among siblings, large ones first; by weight if not given. */
  order?: Record<Weight, number>;
}

export function readData<T = Data>(): T {
  const text = document.getElementById("kprism-data")?.textContent;
  if (!text) throw new Error("the report holds no data");
  return JSON.parse(text) as T;
}

/** What every page's data has. */
export type Names = Pick<Data, "funcs" | "modules" | "comms">;

export function originOf(data: Names, func: number, kind: Frame["kind"], parent: Frame | null): Origin {
  const kernel = data.funcs.kernel[func] === 1;
  if (kernel && kind === "interrupt") return "interrupt";
  if (kernel && kind === "exception") return "exception";
  // Everything below an interrupt or a fault belongs to it, until a task's own code goes on.
  if (kernel && (parent?.origin === "interrupt" || parent?.origin === "exception")) return parent.origin;
  const module = data.modules[data.funcs.module[func]] ?? "";
  if (kernel) return module === "[kernel]" ? "kernel" : "module";
  return /\.so(\.|$)|^\[vdso\]$/.test(module) ? "library" : "program";
}

/** Builds the frames of a tree and sums them up. */
export function readTree(data: Data, tree: TreeData): Frame[] {
  const frames: Frame[] = [];
  for (let i = 0; i < tree.parent.length; i++) {
    const parent = i === 0 ? null : frames[tree.parent[i]];
    const ref = tree.ref[i];
    const kind = KINDS[tree.kind[i]] ?? "call";
    let name = tree.label;
    let module = "";
    let origin: Origin = "task";
    if (ref >= 0) {
      name = data.funcs.name[ref];
      module = data.modules[data.funcs.module[ref]] ?? "";
      origin = originOf(data, ref, kind, parent);
    } else if (ref === -2) {
      name = "small contexts, folded";
      origin = "folded";
    } else if (ref <= -3) {
      name = data.comms[-3 - ref];
    }
    const self = { insns: tree.insns[i], ns: tree.ns[i] };
    frames.push({
      index: i,
      parent,
      children: [],
      depth: parent ? parent.depth + 1 : 0,
      name,
      module,
      func: ref >= 0 ? ref : -1,
      kind,
      origin,
      calls: tree.calls[i],
      self,
      total: { ...self },
    });
    parent?.children.push(frames[i]);
  }
  for (let i = frames.length - 1; i > 0; i--) {
    const { parent, total } = frames[i];
    if (!parent) continue;
    parent.total.insns += total.insns;
    parent.total.ns += total.ns;
  }
  return frames;
}

/** The path from the root to a frame. */
export function pathTo(frame: Frame): Frame[] {
  const path: Frame[] = [];
  for (let at: Frame | null = frame; at; at = at.parent) path.unshift(at);
  return path;
}
