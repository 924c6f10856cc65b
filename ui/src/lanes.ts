// SPDX-License-Identifier: MIT OR Apache-2.0
// The timeline of a run: lanes on one clock. Wheel, drag and keys move and zoom; the pointer tells what is there, a click
// keeps it, a range shows sums, the search marks, and the address keeps what is on show.

import { h, segmented } from "./dom.ts";
import { duration, exact, plural } from "./format.ts";
import { choose, chosen, chosenRange, onAddress } from "./fragment.ts";
import { type Lane, type Row, type TimelineData, readLane, touching } from "./lanes-data.ts";
import { AXIS, LEFT, type Line, Painter, ROW, type Scene } from "./lanes-draw.ts";
import { itemLines, itemTable, sumsOf } from "./lanes-tell.ts";
import { type Moment, type Single, Singles, momentOf } from "./moments.ts";
import { behind, isDark, leave, point } from "./plots.ts";

/** Height of the chart on the page; more lanes scroll. */
const HEIGHT = 600;
/** Nothing shorter is worth a look: a few instructions. */
const LEAST_NS = 4;
/** Calls are drawn from this part of the run on. */
const CLOSE = 1 / 20;
/** Longest single calls of a name that can be asked for. */
const SINGLES = 8;

type ShowCalls = "close" | "always" | "never";

export interface Under {
  line: Line;
  row: Row;
  /** Indices in the row, the end exclusive; more than one if they share a pixel. */
  first: number;
  end: number;
}

export class Lanes {
  readonly element: HTMLElement;
  private readonly lanes: Lane[];
  private readonly canvas = h("canvas", { class: "lanes", tabindex: "0", role: "img" });
  private readonly spacer = h("div", { class: "spacer" });
  private readonly box = h("div", { class: "lanes-box" }, this.canvas, this.spacer);
  private readonly caption = h("p", { class: "note caption" });
  private readonly details = h("div", { class: "details", "aria-live": "polite" });
  private readonly sums = h("div", { class: "sums" });
  private readonly found = h("output", { class: "found", for: "search-lanes" });
  private readonly painter: Painter;
  private readonly whole: [number, number];
  private view: [number, number];
  private selection: [number, number] | null = null;
  private marks: Uint8Array | null = null;
  private item: { lane: number; item: number } | null = null;
  private calls: ShowCalls = "close";
  private lines: Line[] = [];
  private cursor = -1;
  private frame = 0;
  private later = 0;
  private drag: { x: number; y: number; view: [number, number]; top: number; selects: number | null; moved: boolean } | null = null;
  private readonly table: HTMLDetailsElement;
  private readonly moment = h("div", { class: "moment-box" });
  readonly singles: Singles;

  /** `parts` makes what is shown of a chosen moment; at once if somebody asked for it by its name. */
  constructor(private readonly data: TimelineData, private readonly parts: (moment: Moment, now: boolean) => HTMLElement) {
    this.lanes = data.lanes.map(readLane);
    this.singles = new Singles(this.lanes, data, SINGLES);
    this.whole = [0, data.ns];
    this.view = [0, data.ns];
    this.painter = new Painter(this.canvas.getContext("2d")!, data.texts);
    const button = (text: string, title: string, act: () => void) => h("button", { type: "button", title, "aria-label": title, click: act }, text);
    const search = h("input", { type: "search", id: "search-lanes", placeholder: "Search the timeline…", "aria-label": "Search the timeline", autocomplete: "off", spellcheck: "false" });
    search.addEventListener("input", () => this.search(search.value));
    const controls = h("div", { class: "controls" },
      h("div", { class: "zoom" }, button("Whole run", "Show the whole run", () => this.show(this.whole)), button("+", "Zoom in", () => this.zoom(0.5)), button("−", "Zoom out", () => this.zoom(2)),
        button("Select view", "Select view: the time on show", () => this.select(this.view))),
      segmented<ShowCalls>("Calls of tasks", [["close", "Calls when close"], ["always", "Calls always"], ["never", "No calls"]], "close", (value) => {
        this.calls = value;
        this.redraw();
      }),
      h("div", { class: "search" }, search, this.found));
    const help = h("p", { class: "note" }, "Drag: move; wheel (with Ctrl, or after a click): zoom; Shift and drag, or drag on the time axis: select a range; click: details; double click: fit. Keys: ← → move, + − zoom, 0 whole run, ↑ ↓ lane, , . item before and after, Enter fit, s select, Escape back.");
    this.table = behind(() => itemTable(this.lanes, this.data, this.view), "What is on show as a table");
    this.element = h("div", { class: "lanes-view" }, controls, h("div", { class: "frame" }, this.box), this.caption, h("div", { class: "timeline-below" }, this.details, h("div", { class: "timeline-beside" }, this.moment, this.sums)), help, this.table);
    this.listen();
    onAddress(() => this.fromAddress());
    new ResizeObserver(() => this.redraw()).observe(this.box);
    addEventListener("themechange", () => this.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    this.fromAddress();
  }

  private fromAddress(): void {
    const within = (range: [number, number] | null) => (range && range[0] >= 0 && range[1] <= this.whole[1] ? range : null);
    this.view = within(chosenRange("time")) ?? this.whole;
    this.selection = within(chosenRange("range"));
    const [lane, item] = chosen("item").split(".").map(Number);
    const known = lane !== undefined && item !== undefined && Number.isInteger(item) ? this.find(lane, item) : null;
    this.item = known ? { lane: lane!, item: item! } : null;
    this.tellDetails(known);
    this.redraw();
  }

  private find(lane: number, item: number): { lane: Lane; row: Row; i: number } | null {
    const of = this.lanes[lane];
    for (const row of of?.rows ?? []) {
      const i = row.item.indexOf(item);
      if (i >= 0) return { lane: of!, row, i };
    }
    return null;
  }

  /** Goes to a single call: fits it, chooses it, and shows its instructions. */
  go({ lane, row, i }: Single): void {
    if (lane.data.group === "calls" && this.calls === "never") this.element.querySelector<HTMLInputElement>("#calls-of-tasks-close")?.click();
    this.fit(row, i);
    this.chooseItem({ lane, row, i }, true);
    this.layout();
    this.cursor = this.lines.findIndex((line) => line.lane === lane && line.lane.rows[line.row] === row);
    if (this.cursor >= 0) this.moveCursor(0);
    document.getElementById("timeline")?.scrollIntoView({ block: "start" });
    this.canvas.focus({ preventScroll: true });
  }

  /** Goes to the item of a lane that begins at a time of the run's clock, or shows the time if the file has no such item. */
  goAt(name: string, from: number, ns: number): void {
    const start = from - this.data.from_ns;
    for (const lane of this.lanes.filter((lane) => lane.data.name === name)) {
      for (const row of lane.rows) {
        const i = row.start.findIndex((own, i) => own === start && row.end[i]! - own === ns);
        if (i >= 0) return this.go({ lane, row, i, ns });
      }
    }
    this.show([start - ns * 0.2, start + ns * 1.2]);
    document.getElementById("timeline")?.scrollIntoView({ block: "start" });
  }

  /** Shows a time; its length is kept where it does not fit. */
  show([from, to]: [number, number]): void {
    const width = Math.min(Math.max(to - from, LEAST_NS), this.whole[1]);
    const middle = to - from < width ? from - (width - (to - from)) / 2 : from;
    const begin = Math.max(0, Math.min(middle, this.whole[1] - width));
    this.view = [begin, begin + width];
    this.redraw();
  }

  private zoom(by: number, at = (this.view[0] + this.view[1]) / 2): void {
    const [from, to] = this.view;
    this.show([at - (at - from) * by, at + (to - at) * by]);
  }

  private select(range: [number, number] | null): void {
    this.selection = range && [Math.max(0, range[0]), Math.min(this.whole[1], range[1])];
    choose("range", this.selection ? this.selection.map(Math.round).join() : "");
    this.redraw();
  }

  private search(text: string): void {
    const wanted = text.trim().toLowerCase();
    this.marks = wanted === "" ? null : Uint8Array.from(this.data.texts, (name) => (name.toLowerCase().includes(wanted) ? 1 : 0));
    let count = 0;
    for (const lane of this.lanes) {
      for (const row of lane.rows) row.label.forEach((label) => (count += this.marks?.[label] ?? 0));
      lane.cells?.label.forEach((label, i) => (count += this.marks?.[label] ? lane.cells!.items[i]! : 0));
    }
    this.found.textContent = this.marks ? plural(count, "item") : "";
    this.redraw();
  }

  private redraw(): void {
    if (this.frame === 0) this.frame = requestAnimationFrame(() => this.draw());
  }

  /** Process ids, in brackets, of the tasks that run in the time on show; null if no lane of a CPU says so. */
  private running(): Set<string> | null {
    const cpus = this.lanes.filter((lane) => lane.data.words[0] === "time slice");
    if (cpus.length === 0) return null;
    const labels = new Set<number>();
    for (const { rows, cells } of cpus) {
      // Merged slices do not tell precisely enough.
      if (cells) return null;
      const [first, end] = touching(rows[0]!, this.view[0], this.view[1]);
      for (let i = first; i < end; i++) labels.add(rows[0]!.label[i]!);
    }
    return new Set([...labels].map((label) => this.data.texts[label]!).map((name) => name.slice(name.lastIndexOf("["))));
  }

  private layout(): void {
    const [from, to] = this.view;
    const close = this.calls === "always" || (this.calls === "close" && to - from <= this.whole[1] * CLOSE);
    const running = this.running();
    const lines: Line[] = [];
    let top = AXIS;
    for (const lane of this.lanes) {
      const above = this.lanes[lane.at - 1]?.data;
      const belongs = lane.data.group === "calls" && above?.group === "task" && above.name === lane.data.name;
      if (lane.data.group === "calls") {
        if (!close) continue;
        // A task that only waits here takes no room.
        const pid = lane.data.name.slice(lane.data.name.lastIndexOf("["));
        if (running && !running.has(pid)) continue;
        const busy = (row: Row) => touching(row, from, to).reduce((a, b) => b - a) > 0;
        const deepest = lane.rows.reduce((deep, row, i) => (busy(row) ? i : deep), lane.cells && this.calls === "always" ? 0 : -1);
        for (let row = 0; row <= deepest; row++, top += ROW) lines.push({ lane, row, top, belongs });
        continue;
      }
      for (let row = 0; row < lane.rows.length; row++, top += ROW) lines.push({ lane, row, top, belongs });
    }
    this.lines = lines;
    const height = top + 3;
    this.spacer.style.height = `${height}px`;
    this.canvas.style.height = `${Math.min(height, HEIGHT)}px`;
  }

  private draw(): void {
    this.frame = 0;
    const { canvas, box } = this;
    const width = box.clientWidth;
    if (width < LEFT + 40) return;
    const began = performance.now();
    this.layout();
    const height = parseFloat(canvas.style.height);
    const ratio = devicePixelRatio || 1;
    const [w, t] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== w || canvas.height !== t) [canvas.width, canvas.height] = [w, t];
    canvas.style.width = `${width}px`;
    canvas.getContext("2d")!.setTransform(ratio, 0, 0, ratio, 0, 0);
    const css = getComputedStyle(document.documentElement);
    const [ink, muted, line, paper, accent] = ["--ink", "--muted", "--line", "--card", "--accent"].map((name) => css.getPropertyValue(name).trim()) as [string, string, string, string, string];
    const up = box.scrollTop;
    const lines = this.lines.map((l) => ({ ...l, top: l.top - up }));
    const scene: Scene = {
      lines: lines.filter((l) => l.top > AXIS - ROW && l.top < height), from: this.view[0], to: this.view[1], width, height, dark: isDark(), ink, muted, line, paper, accent,
      selection: this.selection, found: this.marks, chosen: this.item, cursor: -1,
    };
    scene.cursor = scene.lines.findIndex((l) => this.lines[this.cursor] && l.lane === this.lines[this.cursor]!.lane && l.row === this.lines[this.cursor]!.row);
    this.painter.draw(scene);
    canvas.dataset.drawn = String(this.painter.drawn);
    canvas.dataset.view = this.view.join();
    canvas.dataset.ms = (performance.now() - began).toFixed(2);
    clearTimeout(this.later);
    // What is told below the lanes takes room: the first picture has it, or whatever follows would move under the pointer.
    if (!this.settled) return this.settle();
    // What takes longer than a frame waits until the picture stands still.
    this.later = window.setTimeout(() => this.settle(), 120);
  }

  private settle(): void {
    this.settled = true;
    const [from, to] = this.view;
    const isWhole = from === 0 && to === this.whole[1];
    // Parts of a nanosecond mean nothing, but a view must not be empty.
    choose("time", isWhole ? "" : `${Math.floor(from)},${Math.max(Math.floor(from) + 1, Math.ceil(to))}`);
    const said = [`${duration(Math.round(from))} to ${duration(Math.round(to))} of ${duration(this.data.ns)}`, `${plural(this.lanes.length, "lane")}`];
    const scale = (this.canvas.clientWidth - LEFT) / (to - from);
    for (const lane of this.lanes) {
      if (lane.data.group === "calls") continue;
      let thin = 0;
      for (const row of lane.rows) {
        const [first, end] = touching(row, from, to);
        for (let i = first; i < end; i++) if (row.long[i] === 1 && (row.end[i]! - row.start[i]!) * scale < 1) thin++;
      }
      if (thin === 0) continue;
      const [one, many] = lane.data.words;
      this.thin.set(many, { one, n: (this.thin.get(many)?.n ?? 0) + thin });
    }
    for (const [many, { one, n }] of this.thin) said.push(`${plural(n, one, many)} shorter than 1 px`);
    this.thin.clear();
    for (const { data, deeper } of this.lanes) {
      if (data.merged) said.push(`${data.name}: ${exact(data.merged.count)} of ${exact(data.count)} ${data.words[1]}, none longer than ${duration(data.merged.longest_ns)}, are in this file as sums of ${duration(data.merged.bin_ns)} (hatched)`);
      if (deeper > 0) said.push(`${data.name}: ${plural(deeper, data.words[0], data.words[1])} deeper than the rows`);
      if (data.note) said.push(`${data.name}: ${data.note}`);
    }
    if (this.data.texts_cut > 0) said.push(`${plural(this.data.texts_cut, "name")} had no room in this file (…)`);
    this.caption.textContent = `${said.join("; ")}.`;
    this.canvas.setAttribute("aria-label", `Timeline. ${this.caption.textContent} The table below has what is on show.`);
    this.sums.replaceChildren(sumsOf(this.lanes, this.data, this.selection ?? this.view, this.selection !== null, () => this.select(null)));
    if (this.table.open) this.table.dispatchEvent(new Event("toggle"));
  }

  private settled = false;
  private readonly thin = new Map<string, { one: string; n: number }>();

  private time(x: number): number {
    return this.view[0] + ((x - LEFT) / (this.canvas.clientWidth - LEFT)) * (this.view[1] - this.view[0]);
  }

  private under(event: MouseEvent): Under | null {
    const y = event.offsetY + this.box.scrollTop;
    const line = event.offsetY < AXIS || event.offsetX < LEFT ? undefined : this.lines.find((l) => y >= l.top && y < l.top + ROW);
    const row = line?.lane.rows[line.row];
    if (!line || !row) return null;
    const at = this.time(event.offsetX);
    const pixel = this.time(event.offsetX + 1) - at;
    const [first, end] = touching(row, at - pixel, at + pixel);
    const inside: number[] = [];
    for (let i = first; i < end; i++) if (row.end[i]! >= at - pixel) inside.push(i);
    // The one that is really under the pointer, if it is wide enough to be pointed at.
    const wide = inside.find((i) => row.start[i]! <= at && row.end[i]! >= at && row.end[i]! - row.start[i]! >= pixel);
    if (wide !== undefined) return { line, row, first: wide, end: wide + 1 };
    // A diamond of an event is wider than the event.
    if (inside.length === 0) {
      const [a, b] = touching(row, at - 5 * pixel, at + 5 * pixel);
      for (let i = a; i < b; i++) if (row.long[i] === 0) inside.push(i);
    }
    return { line, row, first: inside[0] ?? 0, end: inside.length > 0 ? inside[inside.length - 1]! + 1 : 0 };
  }

  private tellDetails(known: { lane: Lane; row: Row; i: number } | null, now = false): void {
    const moment = known && momentOf(this.data, known.lane, known.row, known.i);
    this.moment.replaceChildren(...(moment ? [this.parts(moment, now)] : []));
    if (!known) {
      this.details.replaceChildren(h("p", { class: "note" }, "Click an item for its details."));
      return;
    }
    const { title, below, lines } = itemLines(this.data, known.lane, known.row, known.i);
    this.details.replaceChildren(h("h3", {}, title), h("p", { class: "where" }, below),
      h("table", { class: "facts" }, h("tbody", {}, ...lines.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value))))));
  }

  private chooseItem(known: { lane: Lane; row: Row; i: number } | null, now = false): void {
    this.item = known && { lane: known.lane.at, item: known.row.item[known.i]! };
    choose("item", this.item ? `${this.item.lane}.${this.item.item}` : "");
    this.tellDetails(known, now);
    this.redraw();
  }

  private fit(row: Row, i: number): void {
    const ns = Math.max(row.end[i]! - row.start[i]!, LEAST_NS);
    this.show([row.start[i]! - ns * 0.2, row.start[i]! + ns * 1.2]);
  }

  /** The next item of the line under the cursor, or the one before. */
  private step(by: 1 | -1): void {
    const line = this.lines[this.cursor];
    const row = line?.lane.rows[line.row];
    if (!line || !row || row.start.length === 0) return;
    const now = this.item?.lane === line.lane.at ? row.item.indexOf(this.item.item) : -1;
    const [first] = touching(row, this.view[0], this.view[1]);
    const next = Math.max(0, Math.min(now < 0 ? first : now + by, row.start.length - 1));
    const middle = (row.start[next]! + row.end[next]!) / 2;
    const width = this.view[1] - this.view[0];
    if (row.start[next]! > this.view[1] || row.end[next]! < this.view[0]) this.show([middle - width / 2, middle + width / 2]);
    this.chooseItem({ lane: line.lane, row, i: next });
  }

  private moveCursor(by: 1 | 0 | -1): void {
    this.cursor = Math.max(0, Math.min(this.cursor + by, this.lines.length - 1));
    const line = this.lines[this.cursor];
    if (line) {
      const { scrollTop } = this.box;
      if (line.top - AXIS < scrollTop) this.box.scrollTop = line.top - AXIS;
      else if (line.top + ROW > scrollTop + HEIGHT) this.box.scrollTop = line.top + ROW - HEIGHT;
      this.canvas.setAttribute("aria-label", `${line.lane.data.name}, ${plural(line.lane.count, line.lane.data.words[0], line.lane.data.words[1])}`);
    }
    this.redraw();
  }

  private listen(): void {
    const { canvas, box } = this;
    box.addEventListener("scroll", () => this.redraw());
    canvas.addEventListener("wheel", (event) => {
      // The page scrolls as ever unless it is meant.
      if (event.shiftKey || (!event.ctrlKey && document.activeElement !== canvas)) return;
      event.preventDefault();
      this.zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, this.time(Math.max(LEFT, event.offsetX)));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      const selects = event.shiftKey || event.offsetY < AXIS ? this.time(event.offsetX) : null;
      this.drag = { x: event.offsetX, y: event.offsetY, view: this.view, top: box.scrollTop, selects, moved: false };
      canvas.focus({ preventScroll: true });
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", (event) => {
      const { drag } = this;
      this.drag = null;
      if (!drag || drag.moved) return;
      const at = this.under(event);
      if (at && at.end === at.first + 1) {
        this.cursor = this.lines.indexOf(at.line);
        this.chooseItem({ lane: at.line.lane, row: at.row, i: at.first });
      } else if (drag.selects !== null) this.select(null);
    });
    canvas.addEventListener("dblclick", (event) => {
      const at = this.under(event);
      if (at && at.end > at.first) {
        if (at.end === at.first + 1) this.fit(at.row, at.first);
        else this.show([at.row.start[at.first]!, at.row.end[at.end - 1]!]);
      } else this.show(this.whole);
    });
    canvas.addEventListener("pointermove", (event) => {
      const { drag } = this;
      if (drag) {
        drag.moved ||= Math.abs(event.offsetX - drag.x) + Math.abs(event.offsetY - drag.y) > 4;
        if (drag.moved && drag.selects !== null) {
          const at = this.time(event.offsetX);
          this.select([Math.min(drag.selects, at), Math.max(drag.selects, at)]);
        } else if (drag.moved) {
          const by = ((event.offsetX - drag.x) / (canvas.clientWidth - LEFT)) * (drag.view[1] - drag.view[0]);
          box.scrollTop = drag.top - (event.offsetY - drag.y);
          this.show([drag.view[0] - by, drag.view[1] - by]);
        }
      }
      this.tell(event);
    });
    canvas.addEventListener("pointerleave", leave);
    canvas.addEventListener("keydown", (event) => {
      const width = (this.view[1] - this.view[0]) / 5;
      const [from, to] = this.view;
      const known = this.item && this.find(this.item.lane, this.item.item);
      const keys: Record<string, () => void> = {
        "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), "0": () => this.show(this.whole),
        ArrowLeft: () => this.show([from - width, to - width]), ArrowRight: () => this.show([from + width, to + width]),
        ArrowUp: () => this.moveCursor(-1), ArrowDown: () => this.moveCursor(1), ".": () => this.step(1), ",": () => this.step(-1),
        Enter: () => known && this.fit(known.row, known.i), s: () => this.select(this.view),
        Escape: () => (this.selection ? this.select(null) : this.chooseItem(null)),
      };
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]!();
    });
  }

  private tell(event: PointerEvent): void {
    const at = this.under(event);
    if (!at) return leave();
    const { lane } = at.line;
    const [one, many] = lane.data.words;
    if (at.end === at.first + 1) {
      const { title, below, lines } = itemLines(this.data, lane, at.row, at.first);
      return point(event, title, below, lines);
    }
    if (at.end > at.first) {
      let sum = 0;
      for (let i = at.first; i < at.end; i++) sum += at.row.end[i]! - at.row.start[i]!;
      return point(event, `${plural(at.end - at.first, one, many)} shorter than 1 px`, lane.data.name, [["together", duration(sum)]]);
    }
    const { cells } = lane;
    const bin = cells ? Math.floor(this.time(event.offsetX) / cells.width) : -1;
    const inBin: [string, string][] = [];
    let [n, ns] = [0, 0];
    cells?.bin.forEach((b, i) => {
      if (b !== bin) return;
      n += cells.items[i]!;
      ns += cells.ns[i]!;
      if (inBin.length < 8) inBin.push([this.data.texts[cells.label[i]!]!, `${exact(cells.items[i]!)} × , ${duration(cells.ns[i]!)}`]);
    });
    if (n === 0) return leave();
    point(event, `${plural(n, one, many)}, together ${duration(ns)}`, `${lane.data.name}, sums of ${duration(cells!.width)}`, inBin);
  }
}
