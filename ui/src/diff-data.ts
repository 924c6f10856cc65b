// SPDX-License-Identifier: MIT OR Apache-2.0
// What the report crate embeds in the page that compares two runs (see html/compare.rs there), and the two
// trees of frames decoded from it.

import { type Frame, type Header, KINDS, type Names, type Weight, originOf } from "./data.ts";

/** A number, or null where it is not known. */
export type Known = number | null;
/** A value of OLD and one of NEW. */
export type Pair<T> = [T, T];
export type Side = 0 | 1;
export const SIDES: Side[] = [0, 1];
export const SIDE_NAMES: Pair<string> = ["OLD", "NEW"];

export interface DiffData extends Names {
  /** What is compared. */
  name: string;
  headers: Pair<Header>;
  paths: Pair<string>;
  /** Calls that sums are to be divided by, or null. */
  calls: Pair<number> | null;
  /** True where what the run does not have is not known there, rather than zero. */
  unknown: Pair<boolean>;
  /** True where the run's recorder counts no instructions. */
  uncounted: Pair<boolean>;
  /** In columns, as in the report; `present` has bit 0 for OLD, bit 1 for NEW. */
  tree: {
    parent: number[];
    ref: number[];
    kind: number[];
    present: number[];
    calls: Pair<number[]>;
    insns: Pair<number[]>;
    ns: Pair<number[]>;
    folded: number;
  };
  functions: {
    func: number[];
    present: number[];
    calls: Pair<number[]>;
    self_insns: Pair<number[]>;
    total_insns: Pair<number[]>;
    self_ns: Pair<number[]>;
    total_ns: Pair<number[]>;
    omitted: number;
  };
}

export type Change = "only-old" | "only-new" | "grew" | "shrank" | "same" | "not-known";

/** A path in the runs that have it. */
export interface DiffPath {
  name: string;
  module: string;
  kind: Frame["kind"];
  parent: DiffPath | null;
  children: DiffPath[];
  /** True where the run has it. The root is drawn in both. */
  has: Pair<boolean>;
  frames: Pair<Frame | null>;
}

export interface DiffTree {
  /** By index in the data. */
  paths: DiffPath[];
  /** The frames of each run; the first is the root. */
  frames: Pair<Frame[]>;
  of(frame: Frame): DiffPath;
}

/** Drawn where a number is not known. */
export const NOT_KNOWN = "–";
/** Reasons why a number is not known. */
const NOT_SEEN = "Not known: not the same was recorded, or something was lost, so this run may have done it unseen.";
const NO_COUNTS = "Not known: this recorder counts no instructions.";

/** Less than this part more or less is no change that one could see. */
const NOISE = 0.02;

export class Diff {
  readonly tree: DiffTree;

  constructor(readonly data: DiffData) {
    this.tree = readTrees(data);
  }

  /** A sum of one run as it is to be shown: divided by the calls, if it is about calls. */
  scaled(side: Side, value: number): number {
    const { calls } = this.data;
    return calls ? Math.round(value / Math.max(1, calls[side])) : value;
  }

  /** Calls of one run, to two decimals where they are means. */
  callsText(side: Side, value: Known): string {
    if (value === null) return NOT_KNOWN;
    const { calls } = this.data;
    return calls ? (value / Math.max(1, calls[side])).toFixed(2) : value.toLocaleString("en-US");
  }

  /** Calls of the compared part, or null if it is not known how many the run made. */
  invocations(side: Side): Known {
    const calls = this.data.calls?.[side] ?? null;
    return calls === 0 && this.data.unknown[side] ? null : calls;
  }

  /** A value of a run that has what is asked for, or not (null): then it is zero, if that is known. */
  private known(side: Side, value: Known, weight: Weight): Known {
    const { unknown, uncounted } = this.data;
    if (weight === "insns" && uncounted[side]) return null;
    if (value === null) return unknown[side] ? null : 0;
    return this.scaled(side, value);
  }

  /** What a path cost with all below it in both runs. */
  totals(path: DiffPath, weight: Weight): Pair<Known> {
    return SIDES.map((side) => this.known(side, path.has[side] ? path.frames[side]!.total[weight] : null, weight)) as Pair<Known>;
  }

  /** What a path cost without what is below it. */
  selves(path: DiffPath, weight: Weight): Pair<Known> {
    return SIDES.map((side) => this.known(side, path.has[side] ? path.frames[side]!.self[weight] : null, weight)) as Pair<Known>;
  }

  /** Calls of a path in one run. */
  calls(path: DiffPath, side: Side): Known {
    return path.has[side] ? path.frames[side]!.calls : this.data.unknown[side] ? null : 0;
  }

  /** A function's numbers, of a column. */
  ofFunction(columns: Pair<number[]>, i: number, weight: Weight): Pair<Known> {
    const has = (side: Side) => (this.data.functions.present[i] & (1 << side)) !== 0;
    return SIDES.map((side) => this.known(side, has(side) ? columns[side][i] : null, weight)) as Pair<Known>;
  }

  /** Calls of a function. */
  callsOfFunction(i: number): Pair<Known> {
    const { present, calls } = this.data.functions;
    const has = (side: Side) => (present[i] & (1 << side)) !== 0;
    return SIDES.map((side) => (has(side) || !this.data.unknown[side] ? calls[side][i] : null)) as Pair<Known>;
  }

  /** The larger of those that are known; none is 0, for sizes that things are sorted by. */
  largest(pair: Pair<Known>): number {
    return Math.max(0, ...pair.map((value) => value ?? 0));
  }

  /** The reason why a number of this run is not known; empty if it is. */
  reason(pair: Pair<Known>, weight: Weight): string {
    const { uncounted } = this.data;
    if (!pair.includes(null)) return "";
    return weight === "insns" && SIDES.some((side) => uncounted[side] && pair[side] === null) ? NO_COUNTS : NOT_SEEN;
  }

  change(path: DiffPath, weight: Weight): Change {
    const { unknown } = this.data;
    if (!path.has[0]) return unknown[0] ? "not-known" : "only-new";
    if (!path.has[1]) return unknown[1] ? "not-known" : "only-old";
    const [before, after] = this.totals(path, weight);
    if (before === null || after === null) return "not-known";
    if (Math.abs(after - before) <= NOISE * Math.max(before, after)) return "same";
    return after > before ? "grew" : "shrank";
  }

  /** The topmost frames of paths that only one run has, the heaviest first. */
  extras(weight: Weight): DiffPath[] {
    const both = (path: DiffPath) => path.frames[0] !== null && path.frames[1] !== null;
    const extras = this.tree.paths.filter((path) => path.parent && both(path.parent) && !both(path));
    const size = (path: DiffPath) => this.largest(this.totals(path, weight));
    return extras.sort((a, b) => size(b) - size(a));
  }
}

function readTrees(data: DiffData): DiffTree {
  const { tree } = data;
  const paths: DiffPath[] = [];
  const frames: Pair<Frame[]> = [[], []];
  const index = new Map<Frame, DiffPath>();
  for (let i = 0; i < tree.parent.length; i++) {
    const parent = i === 0 ? null : paths[tree.parent[i]];
    const ref = tree.ref[i];
    const kind = KINDS[tree.kind[i]] ?? "call";
    let name = data.name === "all" ? "All tasks" : data.name;
    let module = "";
    if (ref >= 0) {
      if (i > 0) name = data.funcs.name[ref];
      module = data.modules[data.funcs.module[ref]] ?? "";
    } else if (ref === -2) name = "small contexts, folded";
    else if (ref <= -3) name = data.comms[-3 - ref];
    const path: DiffPath = { name, module, kind, parent, children: [], has: SIDES.map((side) => (tree.present[i] & (1 << side)) !== 0) as Pair<boolean>, frames: [null, null] };
    paths.push(path);
    parent?.children.push(path);
    for (const side of SIDES) {
      if (!path.has[side] && i > 0) continue;
      const above = parent?.frames[side] ?? null;
      const self = { insns: tree.insns[side][i], ns: tree.ns[side][i] };
      const frame: Frame = {
        index: frames[side].length,
        parent: above,
        children: [],
        depth: above ? above.depth + 1 : 0,
        name,
        module,
        func: ref >= 0 ? ref : -1,
        kind,
        origin: ref >= 0 ? originOf(data, ref, kind, above) : ref === -2 ? "folded" : "task",
        calls: tree.calls[side][i],
        self,
        total: { ...self },
      };
      frames[side].push(frame);
      above?.children.push(frame);
      path.frames[side] = frame;
      index.set(frame, path);
    }
  }
  for (const list of frames) {
    for (let i = list.length - 1; i > 0; i--) {
      const { parent, total } = list[i];
      if (!parent) continue;
      parent.total.insns += total.insns;
      parent.total.ns += total.ns;
    }
  }
  // The same order in both, or the eye could not compare them.
  const wholes = frames.map((list) => list[0].total);
  for (const path of paths) {
    const size = (weight: Weight) =>
      Math.max(...SIDES.map((side) => (path.frames[side]?.total[weight] ?? 0) / Math.max(1, wholes[side][weight])));
    const order = path.frames[0] && path.frames[1]
      ? { insns: size("insns"), ns: size("ns") }
      : { insns: size("insns") - 2, ns: size("ns") - 2 }; // what only one has comes last
    for (const frame of path.frames) if (frame) frame.order = order;
  }
  return { paths, frames, of: (frame) => index.get(frame)! };
}
