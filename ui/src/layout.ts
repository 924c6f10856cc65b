// SPDX-License-Identifier: MIT OR Apache-2.0
// Where each frame lies: an interval of the whole, by weight. The views only bend it into arcs or rows.

import { hierarchy, partition, type HierarchyRectangularNode } from "d3-hierarchy";
import type { Frame, Weight } from "./data.ts";

export type Cell = HierarchyRectangularNode<Frame>;

/** The part of the layout on show: an interval, the depth at the centre or top, and rings or rows below. */
export interface Window {
  x0: number;
  x1: number;
  depth: number;
  levels: number;
}

/** Cells narrower than this part of the window cannot be seen or hit. */
const MIN_WIDTH = 0.0007;

export function layout(frames: Frame[], weight: Weight): Cell {
  const root = hierarchy(frames[0], (frame) => frame.children);
  root.each((node) => Object.assign(node, { value: node.data.total[weight] }));
  const order = (cell: { value?: number; data: Frame }) => cell.data.order?.[weight] ?? cell.value ?? 0;
  root.sort((a, b) => order(b) - order(a) || a.data.index - b.data.index);
  return partition<Frame>()(root);
}

export function visible(cell: Cell, window: Window): boolean {
  const width = Math.min(cell.x1, window.x1) - Math.max(cell.x0, window.x0);
  return width > (window.x1 - window.x0) * MIN_WIDTH && cell.depth <= window.depth + window.levels;
}

/** Cells below `focus` that can be seen, the focus first, outer ones later. */
export function cellsBelow(focus: Cell, window: Window): Cell[] {
  const cells = [focus];
  for (let i = 0; i < cells.length; i++) {
    for (const child of cells[i].children ?? []) if (visible(child, window)) cells.push(child);
  }
  return cells;
}

/** Levels with anything to see below a cell, at most `limit`. */
export function levelsBelow(focus: Cell, limit: number): number {
  const window = { x0: focus.x0, x1: focus.x1, depth: focus.depth, levels: limit };
  const cells = cellsBelow(focus, window);
  return cells[cells.length - 1].depth - focus.depth;
}

export function shorten(text: string, width: number, charWidth: number): string {
  const fits = Math.floor(width / charWidth);
  if (text.length <= fits) return text;
  return fits < 4 ? "" : `${text.slice(0, fits - 1)}…`;
}
