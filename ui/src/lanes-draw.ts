// SPDX-License-Identifier: MIT OR Apache-2.0
// Draws lanes on a canvas. Whatever is thinner than a pixel is drawn together with its neighbours, once for each pixel, so
// a frame costs no more than the pixels on show.

import { tick } from "./format.ts";
import { type Lane, type Row, touching, touchingCells } from "./lanes-data.ts";
import { niceStep } from "./plots.ts";

export const ROW = 17;
export const AXIS = 24;
export const LEFT = 190;

/** Colours that people with any colour vision can tell apart, after Okabe and Ito, with the text on them. */
const LIGHT = ["#8cc3ea", "#f0b860", "#7fcdb3", "#e6b3d0", "#f3e07a", "#b9c4d6", "#f0a283", "#a9d58c"];
const DARK = ["#2f6f9f", "#9c6a12", "#1f7c61", "#8d4f77", "#857315", "#515d72", "#9a4d2c", "#4d7a2f"];
const MERGED = { light: "#a2a9b8", dark: "#6c7488" };

/** A line of the picture: a row of a lane. */
export interface Line {
  lane: Lane;
  /** Row within the lane. */
  row: number;
  top: number;
  /** The lane belongs to the one above it: calls below the system calls of their task. */
  belongs: boolean;
}

export interface Scene {
  lines: Line[];
  /** Time on show, ns. */
  from: number;
  to: number;
  width: number;
  height: number;
  dark: boolean;
  ink: string;
  muted: string;
  line: string;
  paper: string;
  accent: string;
  selection: [number, number] | null;
  /** Labels that the search found; null: there is no search. */
  found: Uint8Array | null;
  /** The item that was chosen. */
  chosen: { lane: number; item: number } | null;
  /** Line under the keyboard's cursor. */
  cursor: number;
}

/** A label's colour, the same in all lanes. Grey is idle. */
export function color(text: string, dark: boolean): string {
  if (text === "idle") return dark ? "#2b303b" : "#e3e6ed";
  let hash = 2166136261;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 16777619);
  const palette = dark ? DARK : LIGHT;
  return palette[(hash >>> 9) % palette.length]!;
}

export class Painter {
  private readonly colors: Record<"light" | "dark", string[]>;
  /** Pieces drawn in the last frame, for tests. */
  drawn = 0;

  constructor(private readonly context: CanvasRenderingContext2D, private readonly texts: string[]) {
    const of = (dark: boolean) => texts.map((text) => color(text, dark));
    this.colors = { light: of(false), dark: of(true) };
  }

  draw(scene: Scene): void {
    const { context } = this;
    const { lines, from, to, width, height } = scene;
    this.drawn = 0;
    context.clearRect(0, 0, width, height);
    context.font = "11.5px system-ui, sans-serif";
    context.textBaseline = "middle";
    const scale = (width - LEFT) / (to - from);
    const step = niceStep((to - from) / Math.max(2, (width - LEFT) / 110));
    for (let ns = Math.ceil(from / step) * step; ns <= to; ns += step) {
      const x = LEFT + (ns - from) * scale;
      context.fillStyle = scene.line;
      context.fillRect(Math.round(x), AXIS - 6, 1, height);
      context.fillStyle = scene.muted;
      context.fillText(ns === 0 ? "0" : precise(ns, step), x + 4, AXIS / 2);
    }
    let before = -1;
    lines.forEach((line, i) => {
      const { lane, top } = line;
      if (lane.at !== before && !line.belongs) {
        context.fillStyle = scene.line;
        context.fillRect(0, top, width, 1);
      }
      if (line.row === 0) {
        context.fillStyle = line.belongs ? scene.muted : scene.ink;
        const name = line.belongs ? "    calls" : lane.data.name;
        context.fillText(fit(name, LEFT - 12), 6, top + ROW / 2 + 1);
      }
      if (i === scene.cursor) {
        context.fillStyle = scene.accent;
        context.fillRect(0, top + 1, 3, ROW - 1);
      }
      before = lane.at;
    });
    context.save();
    context.beginPath();
    context.rect(LEFT, AXIS - 1, width - LEFT, height);
    context.clip();
    for (const line of lines) {
      if (line.row === 0 && line.lane.cells) this.cells(scene, line, scale);
      const row = line.lane.rows[line.row];
      if (row) this.row(scene, line, row, scale);
    }
    if (scene.selection) {
      const [a, b] = scene.selection.map((ns) => LEFT + (ns - from) * scale) as [number, number];
      context.fillStyle = scene.accent;
      context.globalAlpha = 0.16;
      context.fillRect(a, 0, Math.max(1, b - a), height);
      context.globalAlpha = 1;
      context.fillRect(a, 0, 1, height);
      context.fillRect(b, 0, 1, height);
    }
    context.restore();
  }

  private row(scene: Scene, line: Line, row: Row, scale: number): void {
    const { context } = this;
    const { from, to, width, found, dark } = scene;
    const colors = this.colors[dark ? "dark" : "light"];
    const top = line.top + 2;
    const tall = ROW - 3;
    const [first, end] = touching(row, from, to);
    // What is thinner than a pixel is gathered until the next pixel begins.
    let [pending, until, several, hit] = [-1, -1, 0, false];
    const flush = () => {
      if (several === 0) return;
      context.globalAlpha = found && !hit ? 0.22 : 1;
      context.fillStyle = several === 1 || hit ? colors[pending]! : dark ? MERGED.dark : MERGED.light;
      context.fillRect(until - 1, top, 1, tall);
      this.drawn++;
      several = 0;
      hit = false;
    };
    for (let i = first; i < end; i++) {
      const label = row.label[i]!;
      const x = LEFT + (row.start[i]! - from) * scale;
      const wide = (row.end[i]! - row.start[i]!) * scale;
      const marked = found === null || found[label] === 1;
      if (x + wide < LEFT - 1) continue;
      if (wide < 1 && row.long[i] === 1) {
        const pixel = Math.floor(x) + 1;
        if (pixel !== until) {
          flush();
          until = pixel;
        }
        if (several++ === 0 || (found !== null && marked)) pending = label;
        hit ||= found !== null && marked;
        continue;
      }
      flush();
      until = -1;
      context.globalAlpha = marked ? 1 : 0.22;
      context.fillStyle = colors[label]!;
      this.drawn++;
      if (row.long[i] === 0) {
        // An event: a diamond.
        const middle = top + tall / 2;
        context.beginPath();
        context.moveTo(x, top);
        context.lineTo(x + 5, middle);
        context.lineTo(x, top + tall);
        context.lineTo(x - 5, middle);
        context.fill();
        context.strokeStyle = scene.muted;
        context.lineWidth = 1;
        context.stroke();
        continue;
      }
      const left = Math.max(x, LEFT - 1);
      const right = Math.min(x + wide, width);
      context.fillRect(left, top, right - left - (wide > 3 ? 0.6 : 0), tall);
      if (scene.chosen && scene.chosen.lane === line.lane.at && scene.chosen.item === row.item[i]) {
        context.strokeStyle = scene.ink;
        context.lineWidth = 2;
        context.strokeRect(left + 1, top, right - left - 2, tall);
      }
      const begin = Math.max(x, LEFT) + 4;
      if (right - begin > 22) {
        context.fillStyle = dark ? "#f4f6fb" : "#171a22";
        context.fillText(fit(this.texts[label]!, right - begin - 3), begin, top + tall / 2 + 0.5);
      }
    }
    flush();
    context.globalAlpha = 1;
  }

  /** Merged items: as high as the part of the bin that they fill, hatched so that they are no single interval. */
  private cells(scene: Scene, line: Line, scale: number): void {
    const { context } = this;
    const { bin, items, ns, width: bin_ns } = line.lane.cells!;
    const [first, end] = touchingCells(line.lane.cells!, scene.from, scene.to);
    const base = line.top + ROW - 1;
    context.fillStyle = scene.dark ? MERGED.dark : MERGED.light;
    for (let i = first; i < end; ) {
      // Bins thinner than a pixel are summed.
      const left = Math.floor(LEFT + (bin[i]! * bin_ns - scene.from) * scale);
      const right = Math.max(left + 1, LEFT + ((bin[i]! + 1) * bin_ns - scene.from) * scale);
      let [sum, n] = [0, 0];
      const last = Math.max(bin[i]!, Math.floor((right - LEFT) / scale / bin_ns + scene.from / bin_ns) - 1);
      while (i < end && bin[i]! <= last) {
        sum += ns[i]!;
        n += items[i]!;
        i++;
      }
      const filled = Math.min(1, sum / ((right - left) / scale));
      const high = n > 0 ? Math.max(2, filled * (ROW - 3)) : 0;
      this.drawn++;
      if (right - left < 6) {
        context.fillRect(left, base - high, right - left, high);
        continue;
      }
      // Only what is on show: near by, a bin is millions of pixels wide. The hatching stays where it is when the view moves.
      const until = Math.min(right - 1, scene.width);
      for (let x = left + 4 * Math.max(0, Math.floor((LEFT - left) / 4)); x < until; x += 4) {
        context.fillRect(x, base - high, 2, high);
        this.drawn++;
      }
    }
  }
}

/** A time with the digits that tell it from the next tick. */
function precise(ns: number, step: number): string {
  if (ns < 1000 * step) return tick(ns);
  const [unit, name] = ns >= 1e9 ? [1e9, "s"] : ns >= 1e6 ? [1e6, "ms"] : ns >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${(ns / unit).toFixed(Math.max(0, Math.ceil(Math.log10(unit / step))))} ${name}`;
}

/** Cuts a text to a width, roughly: measuring each text would cost more than drawing it. */
function fit(text: string, width: number): string {
  const room = Math.floor(width / 6.2);
  if (text.length <= room) return text;
  return room < 3 ? "" : `${text.slice(0, room - 1)}…`;
}
