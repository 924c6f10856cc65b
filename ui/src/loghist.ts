// SPDX-License-Identifier: MIT OR Apache-2.0
// A histogram over a logarithmic axis: a bar for each bin, percentiles as dashed lines, the bin under the
// pointer in words.

import type { Values } from "./data.ts";
import { h, s } from "./dom.ts";
import { exact, percent, share, weighed } from "./format.ts";
import { behind, simpleTable } from "./plots.ts";
import type { Weight } from "./data.ts";

const W = 640;
const H = 270;
const LEFT = 52;
const RIGHT = 14;
const TOP = 30;
const BOTTOM = 30;
/** Where counts begin on a logarithmic axis: one interval is to be seen. */
const LEAST = 0.6;

/** A round value for axis ticks: `1 µs`, `20 ns`, `5 k`. */
function tick(value: number, weight: Weight): string {
  const units: [number, string][] = weight === "ns" ? [[1e9, " s"], [1e6, " ms"], [1e3, " µs"], [1, " ns"]] : [[1e9, " G"], [1e6, " M"], [1e3, " k"], [1, ""]];
  for (const [unit, name] of units) if (value >= unit) return `${+(value / unit).toPrecision(3)}${name}`;
  return String(value);
}

/** Powers of ten between two values, and twos and fives between them where there is room. */
function steps(from: number, to: number, room: number): number[] {
  const marks = to / from < room ? [1, 2, 5] : [1];
  const out: number[] = [];
  for (let power = 10 ** Math.floor(Math.log10(Math.max(from, 1))); power <= to; power *= 10) {
    for (const mark of marks) if (power * mark >= from && power * mark <= to) out.push(power * mark);
  }
  return out;
}

function linearSteps(most: number): number[] {
  const raw = most / 4;
  const power = 10 ** Math.floor(Math.log10(Math.max(raw, 1)));
  const step = Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw) ?? power);
  const out: number[] = [];
  for (let at = 0; at <= most; at += step) out.push(at);
  return out;
}

export class LogHistogram {
  readonly element = h("figure", { class: "loghist" });
  private readonly tip = h("div", { class: "tip", role: "status", hidden: true });

  constructor(private readonly title: string, private readonly weight: Weight, private readonly noun = "intervals") {
    document.body.append(this.tip);
  }

  show(name: string, values: Values, logCounts: boolean): void {
    const text = (value: number) => weighed(value, this.weight);
    const bins: [number, number, number][] = [];
    for (let i = 0; i < values.bins.length; i += 3) bins.push([values.bins[i], values.bins[i + 1], values.bins[i + 2]]);
    // Zero has no place on a logarithmic axis: its bin stands left of one.
    const place = (value: number) => (value < 1 ? 0.5 : value);
    const from = place(bins[0][0]) / 1.15;
    const to = Math.max(bins[bins.length - 1][1] * 1.15, from * 4);
    const x = (value: number) => LEFT + (Math.log(place(value) / from) / Math.log(to / from)) * (W - LEFT - RIGHT);
    const most = Math.max(...bins.map(([, , n]) => n));
    const height = H - TOP - BOTTOM;
    const y = (n: number) => {
      if (n <= 0) return H - BOTTOM;
      const part = logCounts ? Math.log(n / LEAST) / Math.log((most * 1.1) / LEAST) : n / (most * 1.06);
      return H - BOTTOM - Math.max(0, part) * height;
    };
    const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" });
    const label = ["p50", "p90", "p99", "max"] as const;
    svg.setAttribute("aria-label", `${this.title} of ${name}, ${exact(values.count)} ${this.noun}: ${label.map((p) => `${p} ${text(values[p])}`).join(", ")}`);
    for (const n of logCounts ? steps(1, most * 1.1, 120) : linearSteps(most)) {
      svg.append(s("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(n), y2: y(n) }),
        s("text", { class: "tick", x: LEFT - 7, y: y(n), dy: "0.34em", "text-anchor": "end" }, tick(n, "insns")));
    }
    for (const value of steps(from, to, 40)) {
      svg.append(s("line", { class: "grid", x1: x(value), x2: x(value), y1: TOP, y2: H - BOTTOM + 4 }),
        s("text", { class: "tick", x: x(value), y: H - BOTTOM + 18, "text-anchor": "middle" }, tick(value, this.weight)));
    }
    let below = 0;
    for (const [low, high, n] of bins) {
      below += n;
      const [left, right] = [x(low), x(high)];
      const up = y(n);
      const bar = s("rect", { class: "bin", x: left.toFixed(2), width: Math.max(1, right - left - 0.7).toFixed(2), y: up.toFixed(2), height: Math.max(0, H - BOTTOM - up).toFixed(2) });
      const target = s("rect", { class: "target", x: left.toFixed(2), width: Math.max(1, right - left).toFixed(2), y: TOP, height });
      const upTo = below;
      target.addEventListener("pointermove", (event: PointerEvent) => this.point(event, bar, [
        h("strong", {}, high - low <= 1 ? text(low) : `${text(low)} – ${text(high)}`),
        h("div", {}, h("span", {}, this.noun), h("b", {}, exact(n))),
        h("div", {}, h("span", {}, "of all"), h("b", {}, percent(share(n, values.count)))),
        h("div", {}, h("span", {}, "up to here"), h("b", {}, percent(share(upTo, values.count)))),
      ]));
      target.addEventListener("pointerleave", () => this.leave(bar));
      svg.append(bar, target);
    }
    svg.append(...this.markers(label.map((p) => [p, x(values[p])])));
    svg.append(s("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM }));
    const facts = `${exact(values.count)} ${this.noun}, mean ${text(Math.floor(values.mean))}, p50 ${text(values.p50)}, p90 ${text(values.p90)}, p99 ${text(values.p99)}, max ${text(values.max)}`;
    const isOpen = this.element.querySelector("details")?.open ?? false;
    const table = behind(() => simpleTable(`${this.title} of ${name}`, ["from", "below", this.noun, "of all"],
      bins.map(([low, high, n]) => [text(low), text(high), exact(n), percent(share(n, values.count))]), 0));
    table.open = isOpen;
    this.element.replaceChildren(h("figcaption", {}, h("strong", {}, this.title), ` — ${facts}`), svg, table);
    this.tip.hidden = true;
  }

  /** Dashed lines; names that would overlap are joined. */
  private markers(lines: [string, number][]): SVGElement[] {
    const out: SVGElement[] = [];
    const groups: { x: number; names: string }[] = [];
    for (const [name, at] of lines) {
      out.push(s("line", { class: "percentile", x1: at, x2: at, y1: TOP - 6, y2: H - BOTTOM }));
      const before = groups[groups.length - 1];
      if (before && at - before.x < 34) before.names += ` ${name}`;
      else groups.push({ x: at, names: name });
    }
    for (const { x, names } of groups) {
      out.push(s("text", { class: "percentile-name", x: Math.min(x, W - RIGHT - names.length * 3), y: TOP - 11, "text-anchor": "middle" }, names));
    }
    return out;
  }

  private point(event: PointerEvent, bar: SVGElement, lines: Node[]): void {
    bar.classList.add("pointed");
    this.tip.replaceChildren(...lines);
    this.tip.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    this.tip.style.left = `${Math.max(4, Math.min(event.clientX + 16, innerWidth - width - 8))}px`;
    this.tip.style.top = `${Math.max(4, event.clientY - height - 12)}px`;
  }

  private leave(bar: SVGElement): void {
    bar.classList.remove("pointed");
    this.tip.hidden = true;
  }
}
