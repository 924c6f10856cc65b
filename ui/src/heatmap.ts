// SPDX-License-Identifier: MIT OR Apache-2.0
// Misses over address and time. Only pages that missed have a place. Cells are summed to what the screen can show, and
// come apart when the view is narrowed.

import { h } from "./dom.ts";
import { count, duration, exact, plural, tick } from "./format.ts";
import { chosenRange, choose, onAddress } from "./fragment.ts";
import { behind, isDark, leave, niceStep, point, ramp, simpleTable } from "./plots.ts";
import { data, type MapRow } from "./tlb-data.ts";

const LEFT = 230;
const AXIS = 22;
const HEIGHT = 560;
/** A cell's least width, in pixels. */
const CELL = 3;
/** Pages without misses that are worth a line between two rows: 2 MiB. */
const GAP = 512;

/** What is on show: bins and rows, ends exclusive. */
interface View {
  bins: [number, number];
  rows: [number, number];
}

export class HeatMap {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { class: "heat", tabindex: "0", role: "img" });
  private readonly caption = h("p", { class: "note caption" });
  private readonly scale = h("div", { class: "scale" });
  private readonly cells: Float64Array;
  private readonly whole: View;
  private view: View;
  private chosen = -2;
  private marked: (object: number) => boolean = () => true;
  private drag: { x: number; y: number; view: View; moved: boolean } | null = null;
  private readonly table: HTMLDetailsElement;

  constructor(private readonly onchoose: (object: number) => void) {
    const { rows, bins } = data.map;
    this.cells = new Float64Array(rows.length * bins);
    rows.forEach((row, r) => {
      let bin = 0;
      for (let i = 0; i < row.cells.length; i += 2) {
        bin += row.cells[i]!;
        this.cells[r * bins + bin] = row.cells[i + 1]!;
        bin++;
      }
    });
    this.whole = { bins: [0, bins], rows: [0, rows.length] };
    this.view = this.fromAddress();
    const button = (text: string, title: string, act: () => void) => h("button", { type: "button", title, "aria-label": `${text}: ${title.toLowerCase()}`, click: act }, text);
    const controls = h("div", { class: "controls zoom" },
      button("Whole run", "Show everything", () => this.show(this.whole)),
      button("+ time", "Narrow the time", () => this.zoom("bins", 0.5)), button("− time", "Widen the time", () => this.zoom("bins", 2)),
      button("+ address", "Narrow the addresses", () => this.zoom("rows", 0.5)), button("− address", "Widen the addresses", () => this.zoom("rows", 2)),
      h("span", { class: "note" }, "wheel: time, Shift and wheel: addresses, drag: move, click: choose, double click: only this object; keys + − [ ] arrows 0"));
    this.table = behind(() => this.asTable());
    this.element = h("div", { class: "heat-frame" }, controls, h("div", { class: "frame" }, this.canvas), this.scale, this.caption, this.table);
    this.listen();
    onAddress(() => {
      this.view = this.fromAddress();
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    addEventListener("themechange", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Misses of all cells. */
  sum(): number {
    return this.cells.reduce((sum, n) => sum + n, 0);
  }

  /** Frames an object, and dims those that the search does not find. */
  mark(chosen: number, marked: (object: number) => boolean): void {
    this.chosen = chosen;
    this.marked = marked;
    this.draw();
  }

  /** Shows an object's rows, over the whole time. */
  showObject(object: number): void {
    const rows = data.map.rows.map((row, r) => (row.object === object ? r : -1)).filter((r) => r >= 0);
    if (rows.length > 0) this.show({ bins: this.view.bins, rows: [rows[0]!, rows[rows.length - 1]! + 1] });
  }

  private fromAddress(): View {
    const within = (range: [number, number] | null, whole: [number, number]): [number, number] =>
      range && range[0] >= 0 && range[1] <= whole[1] ? range : whole;
    return { bins: within(chosenRange("t"), this.whole.bins), rows: within(chosenRange("rows"), this.whole.rows) };
  }

  private show(view: View): void {
    const fit = ([from, to]: [number, number], [, most]: [number, number]): [number, number] => {
      const width = Math.max(1, Math.min(Math.round(to - from), most));
      const begin = Math.max(0, Math.min(Math.round(from), most - width));
      return [begin, begin + width];
    };
    this.view = { bins: fit(view.bins, this.whole.bins), rows: fit(view.rows, this.whole.rows) };
    const text = (key: "bins" | "rows") => (this.view[key].join() === this.whole[key].join() ? "" : this.view[key].join());
    choose("t", text("bins"));
    choose("rows", text("rows"));
    this.draw();
  }

  /** Narrows or widens, around the part `at` (0 to 1) of what is on show. */
  private zoom(axis: "bins" | "rows", by: number, at = 0.5): void {
    const [from, to] = this.view[axis];
    const width = by < 1 ? Math.floor((to - from) * by) : Math.ceil((to - from) * by);
    const begin = from + (to - from - width) * at;
    this.show({ ...this.view, [axis]: [begin, begin + Math.max(1, width)] });
  }

  private move(bins: number, rows: number): void {
    const shift = ([from, to]: [number, number], by: number): [number, number] => [from + by, to + by];
    this.show({ bins: shift(this.view.bins, bins), rows: shift(this.view.rows, rows) });
  }

  /** Bins and rows that one cell on show sums. */
  private level(width: number): { bins: number; rows: number } {
    const [b, r] = [this.view.bins[1] - this.view.bins[0], this.view.rows[1] - this.view.rows[0]];
    const level = (n: number, pixels: number) => 2 ** Math.max(0, Math.ceil(Math.log2(n / Math.max(1, pixels / CELL))));
    return { bins: level(b, width), rows: level(r, HEIGHT) };
  }

  private time(bin: number): number {
    const [from, to] = data.map.span;
    return from + ((to - from + 1) * bin) / data.map.bins;
  }

  private draw(): void {
    const width = this.canvas.clientWidth;
    if (width < LEFT + 20 || data.map.rows.length === 0) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.style.height = `${AXIS + HEIGHT}px`;
    this.canvas.width = width * ratio;
    this.canvas.height = (AXIS + HEIGHT) * ratio;
    const context = this.canvas.getContext("2d")!;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const css = getComputedStyle(document.documentElement);
    const [ink, muted, line] = ["--ink", "--muted", "--line"].map((name) => css.getPropertyValue(name).trim()) as [string, string, string];
    const room = width - LEFT;
    const level = this.level(room);
    const [b0, b1] = this.view.bins;
    const [r0, r1] = this.view.rows;
    const columns = Math.ceil((b1 - b0) / level.bins);
    const lines = Math.ceil((r1 - r0) / level.rows);
    const sums = new Float64Array(columns * lines);
    const dim = new Uint8Array(lines);
    let shown = 0;
    for (let r = r0; r < r1; r++) {
      const to = Math.floor((r - r0) / level.rows);
      if (this.marked(data.map.rows[r]!.object)) dim[to] = 1;
      for (let b = b0; b < b1; b++) {
        const n = this.cells[r * data.map.bins + b]!;
        if (n === 0) continue;
        sums[to * columns + Math.floor((b - b0) / level.bins)]! += n;
        shown += n;
      }
    }
    const most = sums.reduce((a, b) => Math.max(a, b), 1);
    const dark = isDark();
    const picture = new ImageData(columns, lines);
    sums.forEach((n, i) => {
      if (n === 0) return;
      const part = most === 1 ? 1 : 0.08 + (0.92 * Math.log(n)) / Math.log(most);
      picture.data.set([...ramp(part, dark), dim[Math.floor(i / columns)] ? 255 : 45], i * 4);
    });
    const small = document.createElement("canvas");
    [small.width, small.height] = [columns, lines];
    small.getContext("2d")!.putImageData(picture, 0, 0);
    context.imageSmoothingEnabled = false;
    const right = (columns * level.bins * room) / (b1 - b0);
    const bottom = (lines * level.rows * HEIGHT) / (r1 - r0);
    context.save();
    context.beginPath();
    context.rect(LEFT, AXIS, room, HEIGHT);
    context.clip();
    context.drawImage(small, LEFT, AXIS, right, bottom);
    context.restore();
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.drawTime(context, room, line, muted);
    this.drawObjects(context, width, ink, muted, line);
    const perCell = this.time(level.bins) - this.time(0);
    this.drawScale(most);
    const label = `${exact(shown)} of ${exact(data.misses)} misses are on show, ${duration(Math.round(this.time(b0) - data.map.span[0]))} to ${duration(Math.round(this.time(b1) - data.map.span[0]))} after the first`;
    this.canvas.setAttribute("aria-label", `Map of misses over address and time. ${label}.`);
    this.canvas.dataset.shown = String(shown);
    this.caption.textContent = `${label}. A cell is ${duration(Math.max(1, Math.round(perCell)))} × ${plural(level.rows, "row")} of pages that missed; the page holds at most ${exact(data.map.limit)} cells, however long the run was.`;
    if (this.table.open) this.table.dispatchEvent(new Event("toggle"));
  }

  private drawTime(context: CanvasRenderingContext2D, room: number, line: string, muted: string): void {
    const [b0, b1] = this.view.bins;
    const [from, to] = [this.time(b0) - data.map.span[0], this.time(b1) - data.map.span[0]];
    const step = niceStep((to - from) / Math.max(2, room / 110));
    for (let ns = Math.ceil(from / step) * step; ns <= to; ns += step) {
      const x = LEFT + ((ns - from) / (to - from)) * room;
      context.fillStyle = line;
      context.fillRect(x, AXIS - 5, 1, 5);
      context.fillStyle = muted;
      context.fillText(ns === 0 ? "0" : tick(ns), x + 3, AXIS / 2);
    }
  }

  /** Names of objects at the left, lines where one ends and where pages lie between that did not miss. */
  private drawObjects(context: CanvasRenderingContext2D, width: number, ink: string, muted: string, line: string): void {
    const [r0, r1] = this.view.rows;
    const y = (r: number) => AXIS + ((r - r0) / (r1 - r0)) * HEIGHT;
    let free = 0;
    for (let r = r0; r < r1; ) {
      const { object } = data.map.rows[r]!;
      let end = r + 1;
      while (end < r1 && data.map.rows[end]!.object === object) end++;
      const [top, bottom] = [y(r), y(end)];
      context.fillStyle = line;
      // Many small objects would be one grey field.
      if (bottom - top >= 4) context.fillRect(0, bottom, width, 1);
      const middle = Math.max((top + bottom) / 2, free + 7);
      if (middle - 7 >= free && middle <= bottom + 4 && bottom - top >= 3) {
        context.fillStyle = object === this.chosen ? ink : this.marked(object) ? ink : muted;
        context.font = `${object === this.chosen ? "600 " : ""}11px system-ui, sans-serif`;
        context.fillText(fitted(context, labelOf(object), LEFT - 12), 4, middle);
        free = middle + 7;
      }
      if (object === this.chosen) {
        context.strokeStyle = ink;
        context.lineWidth = 2;
        context.strokeRect(LEFT, top, width - LEFT - 1, Math.max(2, bottom - top));
      }
      for (let at = r + 1; at < end; at++) {
        if ((data.map.rows[at]!.gap ?? 0) < GAP || bottom - top < 12) continue;
        context.fillStyle = muted;
        for (let x = LEFT; x < width; x += 12) context.fillRect(x, y(at), 3, 1);
      }
      r = end;
    }
  }

  private drawScale(most: number): void {
    const dark = isDark();
    const stops = Array.from({ length: 8 }, (_, i) => `rgb(${ramp(0.08 + (0.92 * i) / 7, dark).join(" ")})`);
    const bar = h("span", { class: "ramp" });
    bar.style.background = `linear-gradient(to right, ${stops.join(",")})`;
    this.scale.replaceChildren("1", bar, `${exact(most)} misses in a cell (logarithmic); nothing drawn: none; dotted line: 2 MiB and more without misses`);
  }

  private under(event: MouseEvent): { row: MapRow; r: number; bin: number } | null {
    const x = event.offsetX - LEFT;
    const [b0, b1] = this.view.bins;
    const [r0, r1] = this.view.rows;
    const r = Math.floor(r0 + ((event.offsetY - AXIS) / HEIGHT) * (r1 - r0));
    const row = data.map.rows[r];
    if (!row || event.offsetY < AXIS || r < r0 || r >= r1) return null;
    const bin = x < 0 ? -1 : Math.min(data.map.bins - 1, Math.floor(b0 + (x / (this.canvas.clientWidth - LEFT)) * (b1 - b0)));
    return { row, r, bin };
  }

  private listen(): void {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const by = (event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8;
      if (event.shiftKey) this.zoom("rows", by, (event.offsetY - AXIS) / HEIGHT);
      else this.zoom("bins", by, Math.max(0, event.offsetX - LEFT) / (canvas.clientWidth - LEFT));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      this.drag = { x: event.offsetX, y: event.offsetY, view: this.view, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", (event) => {
      const moved = this.drag?.moved ?? false;
      this.drag = null;
      const at = this.under(event);
      if (!moved && at) this.onchoose(at.row.object);
    });
    canvas.addEventListener("dblclick", (event) => {
      const at = this.under(event);
      if (at && at.row.object >= 0) this.showObject(at.row.object);
      else this.show(this.whole);
    });
    canvas.addEventListener("pointermove", (event) => {
      const { drag } = this;
      if (drag) {
        const { bins, rows } = drag.view;
        const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
        drag.moved ||= Math.abs(dx) + Math.abs(dy) > 4;
        if (drag.moved) {
          const [x, y] = [(dx / (canvas.clientWidth - LEFT)) * (bins[1] - bins[0]), (dy / HEIGHT) * (rows[1] - rows[0])];
          this.show({ bins: [bins[0] - x, bins[1] - x], rows: [rows[0] - y, rows[1] - y] });
        }
      }
      const at = this.under(event);
      if (at) this.tell(event, at);
      else leave();
    });
    canvas.addEventListener("pointerleave", leave);
    canvas.addEventListener("keydown", (event) => {
      const [b, r] = [Math.ceil((this.view.bins[1] - this.view.bins[0]) / 8), Math.ceil((this.view.rows[1] - this.view.rows[0]) / 8)];
      const keys: Record<string, () => void> = {
        "+": () => this.zoom("bins", 0.5), "=": () => this.zoom("bins", 0.5), "-": () => this.zoom("bins", 2),
        "]": () => this.zoom("rows", 0.5), "[": () => this.zoom("rows", 2), "0": () => this.show(this.whole),
        ArrowLeft: () => this.move(-b, 0), ArrowRight: () => this.move(b, 0), ArrowUp: () => this.move(0, -r), ArrowDown: () => this.move(0, r),
        Escape: () => this.onchoose(-2),
      };
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]!();
    });
  }

  private tell(event: MouseEvent, { row, r, bin }: { row: MapRow; r: number; bin: number }): void {
    const object = data.objects[row.object];
    const own: [string, string][] = [["pages that missed", exact(row.pages)]];
    if (bin >= 0) {
      const level = this.level(this.canvas.clientWidth - LEFT);
      const begin = this.view.bins[0] + Math.floor((bin - this.view.bins[0]) / level.bins) * level.bins;
      const top = this.view.rows[0] + Math.floor((r - this.view.rows[0]) / level.rows) * level.rows;
      let sum = 0;
      for (let y = top; y < Math.min(top + level.rows, this.view.rows[1]); y++) {
        for (let x = begin; x < Math.min(begin + level.bins, this.view.bins[1]); x++) sum += this.cells[y * data.map.bins + x]!;
      }
      own.push(["from", duration(Math.round(this.time(begin) - data.map.span[0]))], ["misses in this cell", exact(sum)]);
    } else if (object) {
      own.push(["misses", exact(object.misses[0]!)]);
    }
    if (row.gap) own.push(["pages before it without misses", exact(row.gap)]);
    point(event, nameOf(row.object), `${object ? `${object.process}, ` : ""}${row.start} to ${row.last}`, own);
  }

  /** The view in numbers: misses of each object in eight parts of the time on show. */
  private asTable(): Node {
    const [b0, b1] = this.view.bins;
    const parts = Math.min(8, b1 - b0);
    const edges = Array.from({ length: parts + 1 }, (_, i) => b0 + Math.floor(((b1 - b0) * i) / parts));
    const sums = new Map<number, number[]>();
    for (let r = this.view.rows[0]; r < this.view.rows[1]; r++) {
      const { object } = data.map.rows[r]!;
      const to = sums.get(object) ?? edges.slice(1).map(() => 0);
      sums.set(object, to);
      for (let part = 0; part < parts; part++) for (let b = edges[part]!; b < edges[part + 1]!; b++) to[part]! += this.cells[r * data.map.bins + b]!;
    }
    const all = [...sums].map(([object, row]) => ({ object, row, sum: row.reduce((a, b) => a + b, 0) })).sort((a, b) => b.sum - a.sum);
    const heads = ["object", "address", "misses", ...edges.slice(0, -1).map((b) => `from ${duration(Math.round(this.time(b) - data.map.span[0]))}`)];
    return simpleTable("Misses of each object over the time on show", heads,
      all.map(({ object, row, sum }) => [nameOf(object), data.objects[object]?.start ?? "", exact(sum), ...row.map(count)]), 2);
  }
}

const nameOf = (object: number): string => data.objects[object]?.name ?? plural(data.map.others, "other object");

/** The end of an allocation's name tells objects apart: the caller, with its line. */
function labelOf(object: number): string {
  const places = data.objects[object]?.allocated?.[1];
  return places && places.length > 0 ? `${places[places.length - 1]!}${places.length > 1 ? ` > ${places[0]!}` : ""}` : nameOf(object);
}

/** As much of a text as fits. */
function fitted(context: CanvasRenderingContext2D, text: string, room: number): string {
  if (context.measureText(text).width <= room) return text;
  let length = Math.min(text.length, 60);
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > room) length--;
  return `${text.slice(0, length)}…`;
}
