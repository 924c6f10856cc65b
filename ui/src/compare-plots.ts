// SPDX-License-Identifier: MIT OR Apache-2.0
// Distributions and curves of two runs, one over the other: OLD dashed, NEW solid, so that colour is not the only difference.

import type { Curve, Shape } from "./compare-data.ts";
import { h, s } from "./dom.ts";
import { duration, exact, percent, share, tick } from "./format.ts";
import { behind, leave, niceStep, plain, point, short, simpleTable } from "./plots.ts";

const W = 720;
const H = 260;
const [LEFT, RIGHT, TOP, BOTTOM] = [56, 14, 12, 42];
const NAMES = ["OLD", "NEW"] as const;
const CLASSES = ["curve old", "curve new"] as const;

type Pair<T> = [T, T];

function frame(label: string, across: string, up: string): SVGSVGElement {
  return s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label },
    s("text", { class: "tick", x: (LEFT + W) / 2, y: H - 6, "text-anchor": "middle" }, across),
    s("text", { class: "tick", x: 12, y: H / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${H / 2})` }, up),
    s("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM }));
}

export function legend(): HTMLElement {
  const key = (side: 0 | 1) => h("li", {}, s("svg", { width: 34, height: 10, "aria-hidden": "true" }, s("line", { class: CLASSES[side], x1: 0, x2: 34, y1: 5, y2: 5 })) as unknown as HTMLElement, NAMES[side]);
  return h("ul", { class: "legend lines" }, key(0), key(1));
}

/** Parts of all values by bin, on a logarithmic axis; what is not positive stands left of one. */
export function shapeFigure(shape: Shape): HTMLElement {
  const show = (value: number) => (shape.is_time ? (value < 0 ? `−${duration(-value)}` : duration(value)) : plain(value));
  const totals = shape.bins.map((bins) => bins.reduce((sum, bin) => sum + bin[2], 0)) as Pair<number>;
  const all = shape.bins.flat();
  if (all.length === 0) return h("p", { class: "note" }, "No value in either run.");
  const least = all.reduce((a, bin) => Math.min(a, bin[0]), Infinity);
  const most = all.reduce((a, bin) => Math.max(a, bin[1]), -Infinity);
  const log = least >= 0;
  const place = (value: number) => (log ? Math.log(Math.max(value, 0.5)) : value);
  const [from, to] = [place(least), Math.max(place(most), place(least) + 1e-9)];
  const x = (value: number) => LEFT + ((place(value) - from) / (to - from)) * (W - LEFT - RIGHT);
  const parts = shape.bins.map((bins, side) => bins.map((bin) => share(bin[2], totals[side]!)));
  const top = parts.flat().reduce((a, part) => Math.max(a, part), 1e-9);
  const y = (part: number) => H - BOTTOM - (part / top) * (H - TOP - BOTTOM);
  const svg = frame(`${shape.title}: ${NAMES.map((name, side) => `${name} ${exact(totals[side]!)} values`).join(", ")}`, shape.is_time ? "duration" : "value", "% of values");
  for (let part = 0; part <= top; part += niceStep(top / 4)) {
    svg.append(s("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(part), y2: y(part) }), s("text", { class: "tick", x: LEFT - 6, y: y(part), dy: "0.34em", "text-anchor": "end" }, short(+(part * 100).toPrecision(3))));
  }
  const marks: number[] = [];
  if (log) {
    const decades = Math.log10(Math.max(most, 1) / Math.max(least, 1));
    for (let power = 1; power <= most; power *= 10) for (const n of decades < 2.5 ? [1, 2, 5] : [1]) if (n * power >= least && n * power <= most) marks.push(n * power);
  } else for (let at = Math.ceil(least / niceStep((most - least) / 6)) * niceStep((most - least) / 6); at <= most; at += niceStep((most - least) / 6)) marks.push(at);
  for (const at of marks) {
    svg.append(s("line", { class: "grid", x1: x(at), x2: x(at), y1: TOP, y2: H - BOTTOM + 4 }), s("text", { class: "tick", x: x(at), y: H - BOTTOM + 17, "text-anchor": "middle" }, shape.is_time ? tick(at) : short(at)));
  }
  // OLD last: its dashes lie on NEW's line where both are the same.
  for (const side of [1, 0] as const) {
    const bins = shape.bins[side];
    let path = "";
    let before = NaN;
    bins.forEach(([low, high], i) => {
      const up = y(parts[side]![i]!).toFixed(1);
      const left = x(low).toFixed(1);
      // Between two bins that do not touch there is no value.
      if (low !== before) path += `${Number.isNaN(before) ? "M" : `V${H - BOTTOM}M`}${left} ${H - BOTTOM}`;
      path += `V${up}H${x(high).toFixed(1)}`;
      before = high;
    });
    if (bins.length > 0) svg.append(s("path", { class: CLASSES[side], d: `${path}V${H - BOTTOM}` }));
  }
  const borders = [...new Set(all.flatMap((bin) => [bin[0], bin[1]]))].sort((a, b) => a - b);
  const upTo = (side: number, value: number) => share(shape.bins[side]!.reduce((sum, bin) => sum + (bin[1] <= value ? bin[2] : 0), 0), totals[side]!);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * W;
    const value = borders.find((border) => x(border) >= at);
    if (value === undefined) return leave();
    point(event, `below ${show(value)}`, shape.title, NAMES.map((name, side): [string, string] => [name, percent(upTo(side, value))]));
  });
  svg.addEventListener("pointerleave", leave);
  const rows = borders.slice(0, 400).map((border) => [show(border), ...[0, 1].map((side) => percent(upTo(side, border)))]);
  return h("figure", { class: "plot" }, h("figcaption", {}, h("strong", {}, shape.title), ` — ${NAMES.map((name, side) => `${name}: ${exact(totals[side]!)} values`).join(", ")}`), svg, legend(),
    behind(() => simpleTable(shape.title, ["below", "OLD", "NEW"], rows)));
}

export function curveFigure(curve: Curve): HTMLElement {
  const most = curve.values.flat().reduce((a, b) => Math.max(a, b), 1);
  const x = (p: number) => LEFT + (p / 100) * (W - LEFT - RIGHT);
  const y = (v: number) => H - BOTTOM - (v / most) * (H - TOP - BOTTOM);
  const said = NAMES.map((name, side) => (curve.values[side]!.length ? `${name} ${[50, 90, 99].map((p) => `${curve.values[side]![p]!.toFixed(2)} at ${p}%`).join(", ")}` : `${name} has none`)).join("; ");
  const svg = frame(`${curve.title}: ${said}`, curve.across, curve.up);
  for (let v = 0; v <= most; v += niceStep(most / 5)) svg.append(s("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(v), y2: y(v) }), s("text", { class: "tick", x: LEFT - 6, y: y(v), dy: "0.34em", "text-anchor": "end" }, short(v)));
  for (let p = 0; p <= 100; p += 20) svg.append(s("text", { class: "tick", x: x(p), y: H - BOTTOM + 17, "text-anchor": "middle" }, String(p)));
  for (const side of [1, 0] as const) {
    const values = curve.values[side];
    if (values.length > 0) svg.append(s("path", { class: CLASSES[side], d: values.map((v, p) => `${p ? "L" : "M"}${x(p).toFixed(1)} ${y(v).toFixed(1)}`).join("") }));
  }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const p = Math.round((((event.clientX - box.left) / box.width) * W - LEFT) / (W - LEFT - RIGHT) * 100);
    if (p < 0 || p > 100) return leave();
    point(event, `${p} ${curve.across.split(" ")[0]}`, curve.title, NAMES.map((name, side): [string, string] => [name, curve.values[side]![p] === undefined ? "none" : `${curve.values[side]![p]!.toFixed(2)} ${curve.up}`]));
  });
  svg.addEventListener("pointerleave", leave);
  return h("figure", { class: "plot" }, h("figcaption", {}, h("strong", {}, curve.title)), svg, legend(),
    behind(() => simpleTable(curve.title, [curve.across, ...NAMES], Array.from({ length: 101 }, (_, p) => [String(p), ...[0, 1].map((side) => curve.values[side]![p]?.toFixed(2) ?? "none")]))));
}
