// SPDX-License-Identifier: MIT OR Apache-2.0
// The latency histogram of one system call: logarithmic time, calls per bin, percentiles as lines.

import uPlot from "uplot";
import type { SyscallRow } from "./data.ts";
import { h } from "./dom.ts";
import { duration, exact, plural, tick } from "./format.ts";
import { behind, simpleTable } from "./plots.ts";

/** Lower bound of a bin: four bins an octave, exact below four. The same rule is in html/histogram.rs. */
export function lowerBound(bin: number): number {
  return bin < 8 ? bin : (4 + (bin & 3)) * 2 ** ((bin >> 2) - 2);
}

const next = (bin: number): number => (bin === 3 ? 8 : bin + 1);

export class Histogram {
  readonly element = h("figure", { class: "histogram", hidden: true });
  private readonly heading = h("figcaption");
  private readonly target = h("div", { role: "img" });
  private readonly table = behind(() => this.asTable());
  private plot: uPlot | null = null;
  private row: SyscallRow | null = null;

  constructor() {
    this.element.append(this.heading, this.target, this.table);
    new ResizeObserver(() => {
      const width = this.target.clientWidth;
      if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.plot.height });
    }).observe(this.target);
  }

  /** Bins with calls: the same numbers as the steps. */
  private asTable(): HTMLElement {
    const rows: string[][] = [];
    const bins = this.row?.histogram ?? [];
    for (let i = 0; i < bins.length; i += 2) rows.push([duration(lowerBound(bins[i])), duration(lowerBound(next(bins[i]))), exact(bins[i + 1])]);
    return simpleTable(`Latency of ${this.row?.name ?? ""}`, ["from", "below", "calls"], rows, 0);
  }

  redraw(): void {
    if (this.row) this.show(this.row);
  }

  show(row: SyscallRow | null): void {
    this.row = row;
    this.plot?.destroy();
    this.plot = null;
    this.element.hidden = row === null;
    if (!row) return;
    // Steps from bin to bin, with empty bins between, one more at the end to close the last step.
    const counts = new Map<number, number>();
    for (let i = 0; i < row.histogram.length; i += 2) counts.set(row.histogram[i], row.histogram[i + 1]);
    const bins = [...counts.keys()];
    const [first, last] = [Math.min(...bins), Math.max(...bins)];
    const xs: number[] = [Math.max(0.5, lowerBound(first) * 0.999)];
    const ys: number[] = [0];
    for (let bin = first; bin <= last; bin = next(bin)) {
      xs.push(Math.max(1, lowerBound(bin)));
      ys.push(counts.get(bin) ?? 0);
    }
    xs.push(Math.max(2, lowerBound(next(last))));
    ys.push(0);
    const from = lowerBound(first) / 1.6;
    const to = lowerBound(next(last)) * 1.6;

    const style = getComputedStyle(document.documentElement);
    const color = (name: string) => style.getPropertyValue(name).trim();
    const lines: [string, number][] = [["p50", row.p50_ns], ["p90", row.p90_ns], ["p99", row.p99_ns], ["max", row.max_ns]];
    // Powers of ten, and twos and fives between where there is room.
    const marked = (value: number) => new RegExp(to / from < 60 ? "^[125]0*$" : "^10*$").test(String(value));
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
    const filter = (_plot: uPlot, splits: number[]) => splits.map((value) => (marked(value) ? value : null));
    const options: uPlot.Options = {
      width: Math.max(240, this.target.clientWidth),
      height: 250,
      padding: [26, 14, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false, distr: 3, range: [Math.max(0.5, from), Math.max(4, to)] }, y: { range: (_u, _min, max) => [0, Math.max(1, max * 1.08)] } },
      axes: [
        { ...axis, filter, grid: { ...axis.grid, filter }, ticks: { ...axis.ticks, filter }, values: (_u, values) => values.map((value) => (value === null ? "" : tick(value))) },
        { ...axis, size: 54, label: "calls", labelSize: 18, values: (_u, values) => values.map((value) => (Number.isInteger(value) ? String(value) : "")) },
      ],
      series: [{}, { stroke: color("--accent"), fill: color("--accent-soft"), width: 1.5, paths: uPlot.paths.stepped?.({ align: 1 }), points: { show: false } }],
      hooks: { draw: [(plot) => drawLines(plot, lines, color("--ink"))] },
    };
    this.heading.replaceChildren(h("strong", {}, row.name), ` — wall time of ${plural(row.count, "call")}, waiting included; median ${duration(row.p50_ns)}, maximum ${duration(row.max_ns)}`);
    this.target.setAttribute("aria-label", `Latency histogram of ${row.name}: ${lines.map(([name, ns]) => `${name} ${duration(ns)}`).join(", ")}`);
    this.plot = new uPlot(options, [xs, ys], this.target);
    if (this.table.open) this.table.dispatchEvent(new Event("toggle"));
  }
}

/** Percentiles as dashed lines; names that would overlap are joined. */
function drawLines(plot: uPlot, lines: [string, number][], ink: string): void {
  const { ctx } = plot;
  const scale = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = ink;
  ctx.fillStyle = ink;
  ctx.lineWidth = scale;
  ctx.setLineDash([4 * scale, 3 * scale]);
  ctx.font = `${11 * scale}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  const groups: { x: number; names: string }[] = [];
  for (const [name, ns] of lines) {
    const x = Math.round(plot.valToPos(Math.max(1, ns), "x", true));
    const before = groups[groups.length - 1];
    if (before && x - before.x < 34 * scale) before.names += ` ${name}`;
    else groups.push({ x, names: name });
    ctx.beginPath();
    ctx.moveTo(x, plot.bbox.top - 4 * scale);
    ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
    ctx.stroke();
  }
  for (const { x, names } of groups) {
    const half = ctx.measureText(names).width / 2;
    const right = plot.bbox.left + plot.bbox.width - half;
    ctx.fillText(names, Math.max(plot.bbox.left + half, Math.min(right, x)), plot.bbox.top - 9 * scale);
  }
  ctx.restore();
}
