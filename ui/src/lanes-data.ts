// SPDX-License-Identifier: MIT OR Apache-2.0
// Lanes of a timeline, as src/lanes/detail.rs of the report crate writes them, in arrays that are quick to search.

export type Unit = "count" | "ns" | "text";
export type Group = "run" | "cpu" | "task" | "calls" | "other";

export interface LaneData {
  group: Group;
  name: string;
  words: [string, string];
  note?: string;
  args: [string, Unit][];
  count: number;
  start: number[];
  length: number[];
  label: number[];
  depth?: number[];
  values?: number[];
  merged?: { bin_ns: number; count: number; longest_ns: number; bin: number[]; label: number[]; items: number[]; ns: number[] };
}

export interface TimelineData {
  from_ns: number;
  ns: number;
  texts: string[];
  texts_cut: number;
  lanes: LaneData[];
}

/** Items of one row in order of their starts; times in ns since the timeline's start. */
export interface Row {
  start: Float64Array;
  end: Float64Array;
  label: Uint32Array;
  /** 1: an interval, 0: an event without a length. */
  long: Uint8Array;
  /** The item's number in its lane, for arguments. */
  item: Uint32Array;
  /** The latest end of all items up to this one: ascending, so it can be searched. */
  latest: Float64Array;
}

/** Merged items by bin and label, in order of bins. */
export interface Cells {
  bin: Float64Array;
  label: Uint32Array;
  items: Float64Array;
  ns: Float64Array;
  width: number;
}

export interface Lane {
  at: number;
  data: LaneData;
  rows: Row[];
  cells: Cells | null;
  /** Number of items, merged ones too. */
  count: number;
  /** Items deeper than the rows that are drawn. */
  deeper: number;
}

/** Rows that a lane shows at most; deeper calls are counted as left out. */
const ROWS = 30;

export function readLane(data: LaneData, at: number): Lane {
  const rows: number[][] = [];
  let [start, deeper] = [0, 0];
  const starts = new Float64Array(data.start.length);
  data.start.forEach((distance, i) => {
    start += distance;
    starts[i] = start;
    const depth = data.depth?.[i] ?? 0;
    if (depth < ROWS) (rows[depth] ??= []).push(i);
    else deeper++;
  });
  const row = (items: number[]): Row => {
    const long = Uint8Array.from(items, (i) => (data.length[i]! > 0 ? 1 : 0));
    const begin = Float64Array.from(items, (i) => starts[i]!);
    const end = Float64Array.from(items, (i) => starts[i]! + Math.max(0, data.length[i]! - 1));
    const latest = new Float64Array(items.length);
    end.forEach((ns, i) => (latest[i] = Math.max(ns, i > 0 ? latest[i - 1]! : 0)));
    return { start: begin, end, long, latest, label: Uint32Array.from(items, (i) => data.label[i]!), item: Uint32Array.from(items) };
  };
  // A depth at which nothing was kept has no row.
  const filled = rows.filter((items) => items !== undefined);
  const merged = data.merged;
  let bin = 0;
  const cells = merged
    ? {
      bin: Float64Array.from(merged.bin, (distance) => (bin += distance)), label: Uint32Array.from(merged.label),
      items: Float64Array.from(merged.items), ns: Float64Array.from(merged.ns), width: merged.bin_ns,
    }
    : null;
  return { at, data, rows: filled.length > 0 ? filled.map(row) : [row([])], cells, count: data.count, deeper };
}

/** Why an item's end is not that of its call, if it is none: its length is no duration then. */
export function unended(data: TimelineData, lane: Lane, item: number): string | null {
  const { args, values } = lane.data;
  const n = args.findIndex(([name, unit]) => name === "end" && unit === "text");
  const why = n < 0 ? undefined : data.texts[values?.[item * args.length + n] ?? -1];
  return why === undefined || why === "seen" ? null : why;
}

/** The first index whose value is above `value`, of ascending values. */
export function above(values: Float64Array, value: number): number {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle]! > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The items that touch a time: indices, the end exclusive. */
export function touching(row: Row, from: number, to: number): [number, number] {
  // An event at `from` itself touches.
  let first = above(row.latest, from);
  while (first > 0 && row.latest[first - 1]! >= from) first--;
  return [first, above(row.start, to)];
}

export function touchingCells(cells: Cells, from: number, to: number): [number, number] {
  const first = above(cells.bin, Math.floor(from / cells.width) - 1);
  return [first, above(cells.bin, Math.floor(to / cells.width))];
}

export interface Sum {
  label: number;
  items: number;
  ns: number;
}

/** Sums of a lane by label within a time: lengths cut off at the edges, items that begin inside. Merged items of the bins
 * at the edges count by the part of the bin that is inside; `about` is how many items that concerns. */
export function sums(lane: Lane, from: number, to: number): { all: Sum[]; about: number } {
  const by = new Map<number, Sum>();
  const add = (label: number, items: number, ns: number) => {
    const sum = by.get(label) ?? { label, items: 0, ns: 0 };
    sum.items += items;
    sum.ns += ns;
    by.set(label, sum);
  };
  for (const row of lane.rows) {
    const [first, end] = touching(row, from, to);
    for (let i = first; i < end; i++) {
      if (row.end[i]! < from) continue;
      const begins = row.start[i]! >= from && row.start[i]! <= to;
      add(row.label[i]!, begins ? 1 : 0, Math.max(0, Math.min(row.end[i]!, to) - Math.max(row.start[i]!, from)));
    }
  }
  let about = 0;
  if (lane.cells) {
    const { bin, label, items, ns, width } = lane.cells;
    const [first, end] = touchingCells(lane.cells, from, to);
    for (let i = first; i < end; i++) {
      const [left, right] = [bin[i]! * width, (bin[i]! + 1) * width];
      const part = Math.max(0, Math.min(right, to) - Math.max(left, from)) / width;
      if (part < 1) about += items[i]!;
      add(label[i]!, items[i]! * part, ns[i]! * part);
    }
  }
  return { all: [...by.values()].sort((a, b) => b.ns - a.ns || b.items - a.items), about };
}
