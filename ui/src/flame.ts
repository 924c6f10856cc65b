// SPDX-License-Identifier: MIT OR Apache-2.0
// The same layout as rows: an icicle hangs from the top, a flame stands on the bottom.

import { s } from "./dom.ts";
import { type Cell, type Window, shorten } from "./layout.ts";

export const FLAME_LEVELS = 200;
const ROW = 20;
const CHAR = 6.3;

export interface Rows {
  width: number;
  /** Rows in all, with the focus' ancestors. */
  rows: number;
  /** Stands on the bottom. */
  up: boolean;
}

export function flameFrame(rows: Rows): SVGSVGElement {
  const height = rows.rows * ROW;
  return s("svg", { class: "flame", viewBox: `0 0 ${rows.width} ${height}`, width: rows.width, height });
}

export function flameCell(fill: string): SVGGElement {
  return s("g", { class: "cell row" }, s("rect", { fill, height: ROW - 1 }), s("text", { class: "label", y: ROW / 2, dy: "0.32em" }));
}

export function placeRow(group: SVGGElement, cell: Cell, window: Window, rows: Rows): void {
  const scale = (x: number) => Math.max(0, Math.min(1, (x - window.x0) / (window.x1 - window.x0))) * rows.width;
  const x0 = scale(cell.x0);
  const width = Math.max(0, scale(cell.x1) - x0 - 0.6);
  const row = rows.up ? rows.rows - 1 - cell.depth : cell.depth;
  const rect = group.firstElementChild as SVGRectElement;
  rect.setAttribute("x", x0.toFixed(2));
  rect.setAttribute("y", String(row * ROW));
  rect.setAttribute("width", width.toFixed(2));
  const text = group.lastElementChild as SVGTextElement;
  text.setAttribute("x", (x0 + 4).toFixed(2));
  text.setAttribute("y", String(row * ROW + ROW / 2));
  text.textContent = shorten(cell.data.name, width - 7, CHAR);
}
