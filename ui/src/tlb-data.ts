// SPDX-License-Identifier: MIT OR Apache-2.0
// The data in the page of TLB misses, as src/tlb/page.rs of the report crate writes them.

import type { AccountEntry } from "./data.ts";

export interface MapRow {
  /** Index in `objects`; -1 for the other objects. */
  object: number;
  start: string;
  last: string;
  /** Pages between the row before it and this one that did not miss; null at a process's first row. */
  gap: number | null;
  pages: number;
  /** Empty bins before each bin, and its misses, in turn. */
  cells: number[];
}

export interface ObjectRow {
  name: string;
  kind: string;
  tgid: number;
  process: string;
  start: string;
  bytes: number;
  pages: number;
  misses: number[];
  interval: [number, number] | null;
  allocated: [string, string[]] | null;
}

export interface Curve {
  process: string;
  size: string;
  together: number;
  entries: number;
  misses: number;
  average: number[];
  cdf: number[];
}

/** A table with each cell's value for sorting and its text. */
export interface PlainTable {
  name: string;
  about: string;
  heads: string[];
  keys: string[];
  rows: [number | string | null, string][][];
  omitted: number;
}

export interface TlbData {
  title: string;
  method: string;
  stopped: string | null;
  geometries: string[];
  sampled: boolean;
  misses: number;
  map: { span: [number, number]; bins: number; others: number; limit: number; rows: MapRow[] };
  objects: ObjectRow[];
  omitted: [number, number];
  curves: Curve[];
  tables: PlainTable[];
  advice: PlainTable | null;
  no_advice: string | null;
  account: AccountEntry[];
  notes: string[];
}

export const data = JSON.parse(document.getElementById("kprism-data")!.textContent!) as TlbData;
