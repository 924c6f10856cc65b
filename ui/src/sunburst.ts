// SPDX-License-Identifier: MIT OR Apache-2.0
// The sunburst: a ring per call depth, angle by weight, the focus in the middle.

import { arc } from "d3-shape";
import { s } from "./dom.ts";
import { type Cell, type Window, shorten } from "./layout.ts";

export const SUNBURST_LEVELS = 24;
const R = 500;
const CENTRE = 78;
const MAX_RING = 106;
/** Mean width of a character of a label, in units of the drawing. */
const CHAR = 7.3;

const shape = arc<{ a0: number; a1: number; r0: number; r1: number }>()
  .startAngle((d) => d.a0)
  .endAngle((d) => d.a1)
  .innerRadius((d) => d.r0)
  .outerRadius((d) => d.r1)
  .padAngle((d) => Math.min((d.a1 - d.a0) / 5, 0.0025))
  .padRadius(R / 2);

const ring = (window: Window): number => Math.min(MAX_RING, (R - CENTRE) / Math.max(window.levels, 1));

function geometry(cell: Cell, window: Window) {
  const turn = (x: number) => Math.max(0, Math.min(1, (x - window.x0) / (window.x1 - window.x0))) * 2 * Math.PI;
  const width = ring(window);
  const radius = (level: number) => Math.max(0, Math.min(R, level <= 0 ? 0 : CENTRE + (level - 1) * width));
  const level = cell.depth - window.depth;
  return { a0: turn(cell.x0), a1: turn(cell.x1), r0: radius(level), r1: radius(level + 1) };
}

export function sunburstFrame(): SVGSVGElement {
  return s("svg", { class: "sunburst", viewBox: `${-R - 4} ${-R - 4} ${2 * R + 8} ${2 * R + 8}` });
}

export function sunburstCell(fill: string): SVGPathElement {
  return s("path", { class: "cell arc", fill });
}

export function placeArc(path: SVGPathElement, cell: Cell, window: Window): void {
  const g = geometry(cell, window);
  path.setAttribute("d", g.r1 > g.r0 && g.a1 > g.a0 ? (shape(g) ?? "") : "");
  // The gap drawn around a sliver would leave nothing of it.
  path.classList.toggle("sliver", (g.a1 - g.a0) * g.r1 < 4);
}

/** The name, along the radius or across it, if there is room. */
export function arcLabel(cell: Cell, window: Window, scale: number): SVGTextElement | null {
  const char = CHAR * scale;
  const g = geometry(cell, window);
  const middle = (g.a0 + g.a1) / 2;
  const r = (g.r0 + g.r1) / 2;
  const thick = g.r1 - g.r0;
  const degrees = (middle * 180) / Math.PI;
  const text = (content: string, transform: string) =>
    content ? s("text", { class: "label", transform, "text-anchor": "middle", dy: "0.34em", style: `font-size: ${13.5 * scale}px` }, content) : null;
  // Straight text bulges out of a bent band: the sagitta bounds its length.
  const room = Math.max(0, (thick - 11 * scale) / 2);
  const across = Math.min((g.a1 - g.a0) * r - 6, 2 * Math.sqrt(2 * r * room));
  const along = thick - 6;
  const name = cell.data.name;
  if (thick >= 15 * scale && (across >= name.length * char || (across > along && across > 36 * scale))) {
    const flip = degrees > 90 && degrees < 270 ? 180 : 0;
    return text(shorten(name, across, char), `rotate(${degrees}) translate(0,${-r}) rotate(${flip})`);
  }
  if ((g.a1 - g.a0) * g.r0 > 14 * scale && along > 30 * scale) {
    return text(shorten(name, along, char), `rotate(${degrees - 90}) translate(${r},0) rotate(${degrees < 180 ? 0 : 180})`);
  }
  return null;
}

/** What the middle says, and the target to go back out. */
export function centre(focus: Cell, lines: string[], scale: number): SVGGElement {
  const texts = lines.map((line, i) =>
    s("text", { class: i === 0 ? "centre-name" : "centre-note", "text-anchor": "middle", y: (i - (lines.length - 1) / 2) * 21 * Math.min(scale, 1.25), dy: "0.34em", style: `font-size: ${(i === 0 ? 17 : 14.5) * Math.min(scale, 1.25)}px` },
      shorten(line, 2 * CENTRE - 30, (i === 0 ? 9.4 : 8) * Math.min(scale, 1.25)) || line.slice(0, 12)));
  const circle = s("circle", { r: CENTRE - 2, class: focus.parent ? "centre out" : "centre" });
  return s("g", { class: "middle" }, circle, ...texts);
}
