// SPDX-License-Identifier: MIT OR Apache-2.0
// The PTAT paper's curves: entries sorted by their misses; the average misses of one (figure 6), and the part of all
// misses up to there (figures 7 and 9).

import { h, s, segmented } from "./dom.ts";
import { exact, plural } from "./format.ts";
import { chosen, choose, onAddress } from "./fragment.ts";
import { LINES, behind, leave, niceStep, plain, point, short, simpleTable } from "./plots.ts";
import { data, type Curve } from "./tlb-data.ts";

type By = "neighbours" | "sizes" | "processes";

const W = 620;
const H = 330;
const [LEFT, RIGHT, TOP, BOTTOM] = [58, 12, 14, 40];
/** The shares that `kprism report tlb distribution` prints. */
const PRINTED = [5, 10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 85, 90, 95, 99, 100];

/** One of the two plots. */
interface Plot {
  title: string;
  axis: string;
  log: boolean;
  at: (curve: Curve, percent: number) => number | null;
  show: (value: number) => string;
}

const PLOTS: Plot[] = [
  { title: "Average misses of an entry", axis: "misses of an entry", log: true, at: (curve, p) => (p === 0 ? null : curve.average[p - 1]!), show: plain },
  { title: "Part of all misses", axis: "% of misses", log: false, at: (curve, p) => curve.cdf[p]!, show: (value) => `${value.toFixed(2)}%` },
];

export class Curves {
  readonly element: HTMLElement;
  private readonly plots = h("div", { class: "histograms" });
  private readonly legend = h("ul", { class: "legend lines" });
  private readonly process = h("select", { "aria-label": "Process" });
  private readonly size = h("select", { "aria-label": "Page size" });
  private readonly by: HTMLFieldSetElement;

  constructor() {
    const distinct = (of: (curve: Curve) => string) => [...new Set(data.curves.map(of))];
    this.process.append(...distinct((c) => c.process).map((name) => h("option", { value: name }, name)));
    this.size.append(...distinct((c) => c.size).map((name) => h("option", { value: name }, name === "all" ? "all page sizes" : `${name} pages`)));
    this.by = segmented<By>("Lines", [["neighbours", "By neighbouring entries"], ["sizes", "By page size"], ["processes", "By process"]], this.wanted(), (by) => {
      choose("lines", by === "neighbours" ? "" : by);
      this.draw();
    });
    this.process.addEventListener("change", () => (choose("process", this.process.value === this.process.options[0]?.value ? "" : this.process.value), this.draw()));
    this.size.addEventListener("change", () => (choose("size", this.size.value === this.size.options[0]?.value ? "" : this.size.value), this.draw()));
    this.element = h("div", {}, h("div", { class: "controls" }, this.by, this.process, this.size), this.plots, this.legend,
      h("p", { class: "note" }, "Entries of page tables that missed, in increasing order of their misses. A bus that moves 32 or 64 bytes cannot tell 4 or 8 neighbouring entries apart, as in the PTAT paper's figures 6, 7 and 9."),
      behind(() => this.asTable()));
    onAddress(() => this.draw());
    this.draw();
  }

  private wanted(): By {
    const by = chosen("lines");
    return by === "sizes" || by === "processes" ? by : "neighbours";
  }

  /** The curves to draw, each with its name. */
  private lines(): [string, Curve][] {
    const by = this.wanted();
    const { process, size } = { process: this.process.value, size: this.size.value };
    const all = data.curves.filter((c) => (by === "processes" || c.process === process) && (by === "sizes" || c.size === size) && (by === "neighbours" || c.together === 1));
    const name = (c: Curve) => (by === "neighbours" ? plural(c.together, "entry", "entries together") : by === "sizes" ? (c.size === "all" ? "all page sizes" : `${c.size} pages`) : c.process);
    return all.map((c) => [name(c), c]);
  }

  private draw(): void {
    const has = (select: HTMLSelectElement, value: string) => [...select.options].some((option) => option.value === value);
    const first = (select: HTMLSelectElement) => select.options[0]?.value ?? "";
    this.process.value = has(this.process, chosen("process")) ? chosen("process") : first(this.process);
    this.size.value = has(this.size, chosen("size")) ? chosen("size") : first(this.size);
    const radio = this.by.querySelector<HTMLInputElement>(`input[value="${this.wanted()}"]`);
    if (radio) radio.checked = true;
    this.process.disabled = this.wanted() === "processes";
    this.size.disabled = this.wanted() === "sizes";
    const lines = this.lines();
    this.plots.replaceChildren(...PLOTS.map((plot) => figure(plot, lines)));
    this.legend.replaceChildren(...lines.map(([name, curve], i) => {
      const key = s("svg", { width: 34, height: 10, "aria-hidden": "true" }, stroke(s("line", { x1: 0, x2: 34, y1: 5, y2: 5 }), i));
      return h("li", {}, key, `${name}: ${exact(curve.misses)} misses of ${curve.together === 1 ? plural(curve.entries, "entry", "entries") : plural(curve.entries, "group")}`);
    }));
    if (lines.length === 0) this.plots.append(h("p", { class: "note" }, "No page of this kind missed here."));
  }

  private asTable(): Node {
    const lines = this.lines();
    const heads = ["% of entries", ...lines.flatMap(([name]) => [`${name}: average`, `${name}: % of misses`])];
    return simpleTable("The curves in numbers", heads,
      PRINTED.map((p) => [String(p), ...lines.flatMap(([, curve]) => [plain(curve.average[p - 1]!), curve.cdf[p]!.toFixed(4)])]));
  }
}

function stroke<E extends SVGElement>(element: E, i: number): E {
  const [color, dashes] = LINES[i % LINES.length]!;
  element.setAttribute("stroke", color);
  element.setAttribute("stroke-width", "2.2");
  element.setAttribute("fill", "none");
  if (dashes) element.setAttribute("stroke-dasharray", dashes);
  return element;
}

function figure(plot: Plot, lines: [string, Curve][]): HTMLElement {
  const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" });
  const values = lines.flatMap(([, curve]) => Array.from({ length: 101 }, (_, p) => plot.at(curve, p)).filter((v) => v !== null));
  const [low, high] = plot.log ? [Math.max(Math.min(...values.filter((v) => v > 0), 1), 0.1), Math.max(...values, 1) * 1.1] : [0, 100];
  const x = (p: number) => LEFT + (p / 100) * (W - LEFT - RIGHT);
  const y = (v: number) => H - BOTTOM - (plot.log ? Math.log(Math.max(v, low) / low) / Math.log(high / low || 2) : v / high) * (H - TOP - BOTTOM);
  const marks: number[] = [];
  if (plot.log) for (let v = 10 ** Math.ceil(Math.log10(low)); v <= high; v *= 10) marks.push(v);
  else for (let v = 0; v <= 100; v += niceStep(20)) marks.push(v);
  for (const v of marks) {
    svg.append(s("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(v), y2: y(v) }), s("text", { class: "tick", x: LEFT - 6, y: y(v), dy: "0.34em", "text-anchor": "end" }, short(v)));
  }
  for (let p = 0; p <= 100; p += 20) svg.append(s("text", { class: "tick", x: x(p), y: H - BOTTOM + 16, "text-anchor": "middle" }, String(p)));
  svg.append(s("text", { class: "tick", x: (LEFT + W) / 2, y: H - 6, "text-anchor": "middle" }, "% of entries that missed, sorted by misses"),
    s("text", { class: "tick", x: 12, y: H / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${H / 2})` }, plot.axis));
  lines.forEach(([, curve], i) => {
    const points = Array.from({ length: 101 }, (_, p) => [p, plot.at(curve, p)] as const).filter(([, v]) => v !== null);
    svg.append(stroke(s("path", { class: "curve", d: points.map(([p, v], n) => `${n ? "L" : "M"}${x(p).toFixed(1)} ${y(v!).toFixed(1)}`).join("") }), i));
  });
  const cursor = s("line", { class: "percentile", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
  svg.append(s("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM }), cursor);
  svg.setAttribute("aria-label", `${plot.title}: ${lines.map(([name, curve]) => `${name}: ${[50, 90, 99].map((p) => `${plot.show(plot.at(curve, p)!)} at ${p}%`).join(", ")}`).join("; ")}`);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const p = Math.round((((event.clientX - box.left) / box.width) * W - LEFT) / (W - LEFT - RIGHT) * 100);
    if (p < 0 || p > 100) return;
    cursor.setAttribute("x1", String(x(p)));
    cursor.setAttribute("x2", String(x(p)));
    cursor.setAttribute("visibility", "visible");
    point(event, plot.title, `at ${p}% of the entries`, lines.map(([name, curve]) => [name, plot.at(curve, p) === null ? "–" : plot.show(plot.at(curve, p)!)]));
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    leave();
  });
  return h("figure", { class: "loghist" }, h("figcaption", {}, h("strong", {}, plot.title)), svg);
}
