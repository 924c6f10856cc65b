// SPDX-License-Identifier: MIT OR Apache-2.0
// Plots of hits: histogram, scatter, over time; one for each key. Plots of one kind share their axes.

import { h, s } from "./dom.ts";
import { duration, exact, tick } from "./format.ts";
import { behind, leave, niceStep, plain, point, short, simpleTable } from "./plots.ts";
import { time, type Field, type Slot } from "./probe-data.ts";

const W = 420;
const H = 230;
const [LEFT, RIGHT, TOP, BOTTOM] = [50, 10, 8, 34];

export interface Group {
  name: string;
  hits: number[];
}

/** Called with a range that the reader chose, ends inclusive. */
export type OnRange = (field: Field, from: number, to: number) => void;

const valueText = (field: Field, value: number) => (field === time ? duration(Math.max(0, Math.round(value))) : plain(value));
const tickText = (field: Field, value: number) => (field === time ? tick(Math.round(value)) : short(value));

interface Bin {
  from: number;
  to: number;
  text: string;
}

/** The ends of a field's values over all groups; null if there are none. */
export function extent(field: Field, groups: Group[]): [number, number] | null {
  let [low, high] = [Infinity, -Infinity];
  for (const { hits } of groups) {
    for (const hit of hits) {
      const value = field.number(hit);
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : null;
}

const sizeOf = (value: number) => (value === 0 ? 0 : Math.sign(value) * (Math.floor(Math.log2(Math.abs(value))) + 1));

/** Bins over all groups: powers of two, or steps of equal width; whole numbers one by one if they are few. */
function binsOf(field: Field, groups: Group[], log: boolean): { bins: Bin[]; of: (value: number) => number } | null {
  const ends = extent(field, groups);
  if (!ends) return null;
  const [low, high] = ends;
  const whole = groups.every((group) => group.hits.every((hit) => !(field.number(hit) % 1)));
  const text = (from: number, to: number) => (from === to ? valueText(field, from) : `${valueText(field, from)} to ${valueText(field, to)}`);
  if (log && whole) {
    const first = sizeOf(low);
    const bins = Array.from({ length: sizeOf(high) - first + 1 }, (_, i) => {
      const size = first + i;
      const [from, to] = size === 0 ? [0, 0] : size > 0 ? [2 ** (size - 1), 2 ** size - 1] : [1 - 2 ** -size, -(2 ** (-size - 1))];
      return { from, to, text: text(from, to) };
    });
    return { bins, of: (value) => sizeOf(value) - first };
  }
  const step = Math.max(niceStep((high - low) / 36), whole ? 1 : 0) || 1;
  const begin = Math.floor(low / step) * step;
  const count = Math.floor((high - begin) / step) + 1;
  const bins = Array.from({ length: count }, (_, i) => {
    const [from, to] = [begin + i * step, begin + (i + 1) * step];
    return { from, to: whole ? to - 1 : to, text: whole ? text(from, to - 1) : `${valueText(field, from)} to below ${valueText(field, to)}` };
  });
  return { bins, of: (value) => Math.min(count - 1, Math.floor((value - begin) / step)) };
}

/** Histograms of a field, one a group; the range of a bar that is clicked is chosen. */
export function histograms(field: Field, groups: Group[], log: boolean, onrange: OnRange): HTMLElement[] {
  const made = binsOf(field, groups, log);
  if (!made) return [h("p", { class: "note" }, `No hit on show has a number for ${field.name}.`)];
  const counts = groups.map(({ hits }) => {
    const counts = made.bins.map(() => 0);
    for (const hit of hits) if (!Number.isNaN(field.number(hit))) counts[made.of(field.number(hit))]!++;
    return counts;
  });
  const most = Math.max(1, ...counts.flat());
  return groups.map((group, g) => {
    const own = counts[g]!;
    const sum = own.reduce((a, b) => a + b, 0);
    const bars = made.bins.map((bin, i) => ({ name: bin.text, count: own[i]!, tick: i === 0 || i === made.bins.length - 1 || i % Math.ceil(made.bins.length / 5) === 0 ? tickText(field, bin.from) : "", act: () => onrange(field, bin.from, bin.to) }));
    return barFigure(group.name, `${exact(sum)} of ${exact(group.hits.length)} hits have ${field.name}`, field.name, bars, most);
  });
}

export interface Bar {
  name: string;
  count: number;
  tick: string;
  act?: () => void;
}

/** Bars side by side, with their numbers behind. */
export function barFigure(title: string, note: string, axis: string, bars: Bar[], most: number): HTMLElement {
  const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}: ${axis}, ${note}` });
  const y = (n: number) => H - BOTTOM - (n / most) * (H - TOP - BOTTOM);
  const step = Math.max(1, niceStep(most / 4));
  for (let n = 0; n <= most; n += step) svg.append(s("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(n), y2: y(n) }), s("text", { class: "tick", x: LEFT - 5, y: y(n), dy: "0.34em", "text-anchor": "end" }, short(n)));
  const width = (W - LEFT - RIGHT) / Math.max(1, bars.length);
  bars.forEach((bar, i) => {
    const x = LEFT + i * width;
    if (bar.tick) svg.append(s("text", { class: "tick", x: x + width / 2, y: H - BOTTOM + 14, "text-anchor": i === bars.length - 1 ? "end" : "middle" }, bar.tick));
    if (bar.count === 0) return;
    const top = Math.min(y(bar.count), H - BOTTOM - 1.5);
    const tell = (event: PointerEvent) => point(event, bar.name, axis, [["hits", exact(bar.count)]]);
    const attributes: Record<string, string | number> = { class: "bin", x: (x + 0.4).toFixed(2), width: Math.max(0.8, width - 0.8).toFixed(2), y: top.toFixed(2), height: (H - BOTTOM - top).toFixed(2) };
    attributes["data-count"] = bar.count;
    const rect = s("rect", attributes);
    rect.addEventListener("pointermove", tell);
    rect.addEventListener("pointerleave", leave);
    if (bar.act) rect.addEventListener("click", bar.act);
    svg.append(rect);
  });
  svg.append(s("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM }), s("text", { class: "tick", x: (LEFT + W) / 2, y: H - 5, "text-anchor": "middle" }, axis.slice(0, 60)));
  const table = behind(() => simpleTable(`${title}: ${axis}`, [axis, "hits"], bars.filter((bar) => bar.count > 0).map((bar) => [bar.name, exact(bar.count)])));
  return h("figure", { class: "plot" }, h("figcaption", {}, title ? h("strong", {}, title) : "", title ? " — " : "", note), svg, table);
}

/** The slots of a histogram that was made in the kernel. */
export function slotFigure(title: string, note: string, axis: string, slots: Slot[]): HTMLElement {
  const end = (n: number | null) => (n === null ? "" : plain(n));
  const name = ({ from, to }: Slot) => (from === to ? end(from) : `${end(from)} … ${end(to)}`.trim());
  const every = Math.ceil(slots.length / 5);
  const bars = slots.map((slot, i) => ({ name: name(slot), count: slot.count, tick: i % every === 0 ? (slot.from === null ? "…" : short(slot.from)) : "" }));
  return barFigure(title, note, axis, bars, Math.max(1, ...slots.map((slot) => slot.count)));
}

/** Dots of two fields, one plot a group. A table behind sums parts of the first field. */
export function scatters(x: Field, y: Field, groups: Group[], log: boolean): HTMLElement[] {
  const [xs, ys] = [extent(x, groups), extent(y, groups)];
  if (!xs || !ys) return [h("p", { class: "note" }, `No hit on show has numbers for ${x.name} and ${y.name}.`)];
  const logs = (field: Field, [low]: [number, number]) => log && field !== time && low >= 0;
  const scale = (field: Field, ends: [number, number]) => {
    const [low, high] = ends;
    const bent = logs(field, ends);
    const f = (v: number) => (bent ? Math.log2(v + 1) : v);
    const width = f(high) - f(low) || 1;
    const marks: number[] = [];
    if (bent) for (let v = 1; v <= high; v *= high > 1e6 ? 1000 : 10) v >= low && marks.push(v);
    else for (let step = niceStep((high - low || 1) / 4), v = Math.ceil(low / step) * step; v <= high; v += step) marks.push(v);
    return { at: (v: number) => (f(v) - f(low)) / width, marks };
  };
  const [sx, sy] = [scale(x, xs), scale(y, ys)];
  return groups.map((group) => {
    const canvas = h("canvas", { class: "dots", role: "img" });
    const own = group.hits.filter((hit) => !Number.isNaN(x.number(hit)) && !Number.isNaN(y.number(hit)));
    canvas.setAttribute("aria-label", `${group.name}: ${y.name} over ${x.name}, ${exact(own.length)} hits`);
    canvas.dataset.dots = String(own.length);
    const place = (width: number, hit: number): [number, number] => [LEFT + sx.at(x.number(hit)) * (width - LEFT - RIGHT), H - BOTTOM - sy.at(y.number(hit)) * (H - TOP - BOTTOM)];
    const draw = () => {
      const ratio = devicePixelRatio || 1;
      const width = canvas.clientWidth;
      if (width < 60) return;
      canvas.style.height = `${H}px`;
      canvas.width = width * ratio;
      canvas.height = H * ratio;
      const context = canvas.getContext("2d")!;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      const css = getComputedStyle(document.documentElement);
      context.font = "11px system-ui, sans-serif";
      for (const v of sy.marks) {
        const at = H - BOTTOM - sy.at(v) * (H - TOP - BOTTOM);
        context.fillStyle = css.getPropertyValue("--line");
        context.fillRect(LEFT, at, width - LEFT - RIGHT, 1);
        context.fillStyle = css.getPropertyValue("--muted");
        context.textAlign = "right";
        context.fillText(tickText(y, v), LEFT - 5, at + 4);
      }
      context.textAlign = "center";
      for (const v of sx.marks) context.fillText(tickText(x, v), LEFT + sx.at(v) * (width - LEFT - RIGHT), H - BOTTOM + 14);
      context.fillText(x.name.slice(0, 50), (LEFT + width) / 2, H - 5);
      context.fillStyle = css.getPropertyValue("--accent");
      context.globalAlpha = own.length > 3000 ? 0.25 : 0.6;
      const size = own.length > 3000 ? 2 : 3.4;
      for (const hit of own) {
        const [dx, dy] = place(width, hit);
        context.fillRect(dx - size / 2, dy - size / 2, size, size);
      }
    };
    canvas.addEventListener("pointermove", (event) => {
      let [near, best] = [-1, 144];
      for (const hit of own) {
        const [dx, dy] = place(canvas.clientWidth, hit);
        const distance = (dx - event.offsetX) ** 2 + (dy - event.offsetY) ** 2;
        if (distance < best) [near, best] = [hit, distance];
      }
      if (near < 0) leave();
      else point(event, group.name || y.name, `at ${time.text(near)}`, [[x.name, x.text(near)], [y.name, y.text(near)]]);
    });
    canvas.addEventListener("pointerleave", leave);
    new ResizeObserver(draw).observe(canvas);
    addEventListener("themechange", () => canvas.isConnected && draw());
    const table = behind(() => summary(x, y, own));
    return h("figure", { class: "plot" }, h("figcaption", {}, group.name ? h("strong", {}, group.name) : "", group.name ? " — " : "", `${y.name} over ${x.name}, ${exact(own.length)} hits`), canvas, table);
  });
}

/** The second field in ten parts of the first. */
function summary(x: Field, y: Field, hits: number[]): Node {
  const sorted = [...hits].sort((a, b) => x.number(a) - x.number(b));
  const each = Math.max(1, Math.ceil(sorted.length / 10));
  const rows: string[][] = [];
  for (let i = 0; i < sorted.length; i += each) {
    const part = sorted.slice(i, i + each);
    const values = part.map(y.number);
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    const [low, high] = values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
    rows.push([valueText(x, x.number(part[0]!)), valueText(x, x.number(part[part.length - 1]!)), exact(part.length), ...[low, mean, high].map((v) => valueText(y, v))]);
  }
  return simpleTable(`${y.name} over ${x.name}`, [`${x.name} from`, "to", "hits", `least ${y.name}`, "mean", "most"], rows, 0);
}

/** Hits over time, in bars. */
export function rates(groups: Group[], onrange: OnRange): HTMLElement[] {
  return histograms(time, groups, false, onrange);
}
