// SPDX-License-Identifier: MIT OR Apache-2.0
// Numbers for people, with the units and decimals of the terminal tables.

import type { Weight } from "./data.ts";

const TIME: [number, string][] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
const COUNT: [number, string][] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

function scaled(value: number, units: [number, string][], rest: string): string {
  for (const [unit, name] of units) {
    // Cut off, not rounded: a value never shows larger than it is.
    // The product comes first: 2.046 * 1000 is less than 2046.
    if (value >= unit) return `${(Math.floor((value * 1000) / unit) / 1000).toFixed(3)} ${name}`;
  }
  return rest ? `${value} ${rest}` : `${value}`;
}

export const duration = (ns: number): string => scaled(ns, TIME, "ns");
export const count = (n: number): string => scaled(n, COUNT, "");
// Made once: `toLocaleString` looks its locale up for each number.
const grouped = new Intl.NumberFormat("en-US");
export const exact = (n: number): string => grouped.format(n);
export const share = (part: number, whole: number): number => (whole > 0 ? part / whole : 0);

export function percent(fraction: number): string {
  return `${(fraction * 100).toFixed(2)}%`;
}

/** An offset from a function's entry. Code that the compiler moved away may lie before the entry. */
export const offsetText = (offset: number): string => `${offset < 0 ? "-" : "+"}0x${Math.abs(offset).toString(16)}`;

/** A short duration for axis ticks: `1 µs`, `200 ns`. */
export function tick(ns: number): string {
  for (const [unit, name] of TIME) {
    if (ns >= unit) return `${+(ns / unit).toPrecision(3)} ${name}`;
  }
  return `${ns} ns`;
}

export const weightName = (weight: Weight): string => (weight === "insns" ? "instructions" : "time");
export const weighed = (value: number, weight: Weight): string => (weight === "insns" ? count(value) : duration(value));

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${exact(n)} ${n === 1 ? one : many}`;
}

/** A name with what drives terminals, breaks lines or turns the direction of text as escapes: those of the timeline's texts. */
export function printable(name: string): string {
  const short: Record<string, string> = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };
  return name.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g, (c) => short[c] ?? `\\u{${c.codePointAt(0)!.toString(16)}}`);
}
