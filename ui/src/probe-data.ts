// SPDX-License-Identifier: MIT OR Apache-2.0
// The data in the page of probes, as src/probe/page.rs of the report crate writes them, and the hits as fields.

import type { AccountEntry } from "./data.ts";
import { duration, exact } from "./format.ts";

/** A number, a number too long for one or an address, the index of a text, nothing. */
export type Value = number | string | [number] | null;

export interface ColumnData {
  name: string;
  type: string;
  numeric: boolean;
  address: boolean;
  of: number | null;
  values: Value[];
  count: number;
  least: number | null;
  most: number | null;
  sum: number;
  failed: [string, number][];
}

export interface Slot {
  from: number | null;
  to: number | null;
  count: number;
}

export interface SlotHistogram {
  of: string;
  count: number;
  failed: number;
  sum: number | null;
  slots: Slot[];
}

/** A sum, mean, minimum, maximum or latest value. A sum that no number of 64 bits holds is text; null: there was no value. */
export interface AggregateValue {
  function: string;
  of: string;
  value: number | string | null;
  count: number;
  failed: number;
}

export interface TotalRow {
  key: Record<string, unknown>;
  count: number;
  histograms: SlotHistogram[];
  aggregates?: AggregateValue[];
}

export interface ProbeData {
  title: string;
  probes: { place: string; found: string; file: string; hook: string; condition: string | null; records: boolean; counted: string[] }[];
  sums: string[];
  last: number | null;
  variables: [string, number][];
  rows: {
    total: number; every: number; begin_ns: number;
    time_ns: number[]; cpu: number[]; pid: number[]; tid: number[]; probe: number[];
    columns: ColumnData[]; texts: string[]; cut: number; without_room: number; without_column: number;
  };
  totals: [{ probe: string; rows: TotalRow[] }, number][];
  account: AccountEntry[];
  known: boolean;
}

export const data = JSON.parse(document.getElementById("kprism-data")!.textContent!) as ProbeData;

/** Something that every hit may have. */
export interface Field {
  /** As in the address. */
  id: string;
  name: string;
  numeric: boolean;
  /** True for members of structures, which have no column in the table. */
  member: boolean;
  /** NaN if the hit has none. */
  number: (hit: number) => number;
  text: (hit: number) => string;
}

const { rows } = data;

function fieldOf(column: ColumnData): Field {
  const at = (hit: number): Value => column.values[hit] ?? null;
  return {
    id: column.name, name: column.name, numeric: column.numeric && column.count > 0, member: column.of !== null,
    number: (hit) => {
      const value = at(hit);
      return typeof value === "number" ? value : typeof value === "string" ? Number(value) : NaN;
    },
    text: (hit) => {
      const value = at(hit);
      return value === null ? "" : typeof value === "string" ? value : typeof value === "number" ? String(value) : (rows.texts[value[0]] ?? "");
    },
  };
}

const own = (id: string, name: string, values: number[], show: (value: number) => string): Field =>
  ({ id, name, numeric: true, member: false, number: (hit) => values[hit]!, text: (hit) => show(values[hit]!) });

export const time = own("@time", "time", rows.time_ns, (ns) => duration(ns));
export const place: Field = { id: "@probe", name: "probe", numeric: false, member: false, number: () => NaN, text: (hit) => data.probes[rows.probe[hit]!]?.place ?? "" };
export const whose: Field[] = [own("@cpu", "CPU", rows.cpu, String), own("@pid", "process", rows.pid, String), own("@tid", "thread", rows.tid, String)];
export const collected: Field[] = rows.columns.map(fieldOf);
export const fields: Field[] = [time, ...whose, place, ...collected];
export const fieldNamed = (id: string): Field | undefined => fields.find((field) => field.id === id);
export const hits: number[] = rows.time_ns.map((_, i) => i);
/** How many of the records are in the page, in words. */
export const shown = rows.every === 1 ? `all ${exact(rows.total)} records` : `${exact(hits.length)} of ${exact(rows.total)} records: every ${exact(rows.every)}th`;
