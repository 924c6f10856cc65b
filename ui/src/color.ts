// SPDX-License-Identifier: MIT OR Apache-2.0
// Colour says where code comes from; lightness varies by name so that neighbours can be told apart.

import type { Frame, Origin } from "./data.ts";

/** Hue and chroma in OKLCH; hues far apart also for people who confuse red and green. */
const HUES: Record<Origin, [number, number]> = {
  task: [260, 0.015],
  program: [255, 0.115],
  library: [200, 0.085],
  kernel: [68, 0.125],
  module: [112, 0.125],
  interrupt: [330, 0.13],
  exception: [25, 0.145],
  folded: [260, 0.01],
};

export const ORIGINS: [Origin, string][] = [
  ["program", "program"],
  ["library", "library"],
  ["kernel", "kernel"],
  ["module", "kernel module"],
  ["exception", "fault"],
  ["interrupt", "interrupt"],
  ["folded", "folded"],
];

function hash(name: string): number {
  let hash = 2166136261;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
  return (hash >>> 8) / (1 << 24);
}

function oklch(origin: Origin, lightness: number, turn = 0): string {
  const [hue, chroma] = HUES[origin];
  return `oklch(${lightness.toFixed(3)} ${chroma} ${(hue + turn).toFixed(1)})`;
}

export function fill(frame: Frame): string {
  if (frame.origin === "task") return oklch("task", 0.8);
  if (frame.origin === "folded") return oklch("folded", 0.72);
  return shade(frame.origin, frame.name);
}

/** The colour of a function. */
export function shade(origin: Origin, name: string): string {
  const random = hash(name);
  return oklch(origin, 0.72 + 0.13 * random, (((random * 97) % 1) - 0.5) * 16);
}

export const swatch = (origin: Origin): string => oklch(origin, origin === "folded" ? 0.72 : 0.78);
