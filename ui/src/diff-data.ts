// SPDX-License-Identifier: MIT OR Apache-2.0
// What the report crate embeds in the page that compares two runs (see html/compare.rs there), and the two
// trees of frames decoded from it.

import { type Frame, type Header, KINDS, type Names, type Weight, originOf } from "./data.ts";

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

export type Change = "only-old" | "only-new" | "grew" | "shrank" | "same";

/** A path in the runs that have it. */
export interface DiffPath {
  name: string;
  module: string;
  kind: Frame["kind"];
  parent: DiffPath | null;
  children: DiffPath[];
  frames: Pair<Frame | null>;
}

export interface DiffTree {
  /** By index in the data. */
  paths: DiffPath[];
  /** The frames of each run; the first is the root. */
  frames: Pair<Frame[]>;
  of(frame: Frame): DiffPath;
}

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
  callsText(side: Side, value: number): string {
    const { calls } = this.data;
    return calls ? (value / Math.max(1, calls[side])).toFixed(2) : value.toLocaleString("en-US");
  }

  /** What a path cost with all below it in both runs. */
  totals(path: DiffPath, weight: Weight): Pair<number> {
    return SIDES.map((side) => this.scaled(side, path.frames[side]?.total[weight] ?? 0)) as Pair<number>;
  }

  change(path: DiffPath, weight: Weight): Change {
    if (!path.frames[0]) return "only-new";
    if (!path.frames[1]) return "only-old";
    const [before, after] = this.totals(path, weight);
    if (Math.abs(after - before) <= NOISE * Math.max(before, after)) return "same";
    return after > before ? "grew" : "shrank";
  }

  /** The topmost frames of paths that only one run has, the heaviest first. */
  extras(weight: Weight): DiffPath[] {
    const both = (path: DiffPath) => path.frames[0] !== null && path.frames[1] !== null;
    const extras = this.tree.paths.filter((path) => path.parent && both(path.parent) && !both(path));
    const size = (path: DiffPath) => Math.max(...this.totals(path, weight));
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
    const path: DiffPath = { name, module, kind, parent, children: [], frames: [null, null] };
    paths.push(path);
    parent?.children.push(path);
    for (const side of SIDES) {
      if (!(tree.present[i] & (1 << side)) && i > 0) continue;
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
