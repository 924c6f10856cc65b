// SPDX-License-Identifier: MIT OR Apache-2.0
// The data in the page that compares two runs of an instrument, as src/compared.rs of the report crate writes them.

import type { PlainTable } from "./tlb-data.ts";

export interface Shape {
  title: string;
  is_time: boolean;
  /** Smallest value, largest value plus one, and count of each bin; of OLD and of NEW. */
  bins: [[number, number, number][], [number, number, number][]];
}

export interface Curve {
  title: string;
  across: string;
  up: string;
  values: [number[], number[]];
}

export interface Section {
  id: string;
  title: string;
  about: string;
  table: PlainTable;
  shapes: (Shape | null)[];
  curves: Curve[];
}

export interface Side {
  path: string;
  title: string;
  about: string;
  faults: string[];
}

export interface CompareData {
  name: string;
  sides: [Side, Side];
  facts: [string, [[number | null, string], [number | null, string]]][];
  notes: string[];
  sections: Section[];
}

export const data = JSON.parse(document.getElementById("kprism-data")!.textContent!) as CompareData;
