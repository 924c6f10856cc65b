// SPDX-License-Identifier: MIT OR Apache-2.0
// One chart in three shapes. Holds what is in focus, what is searched for, and moves between states;
// mouse and keyboard do the same things.

import { type Frame, type Weight, pathTo } from "./data.ts";
import { percent, plural, share, weighed, weightName } from "./format.ts";
import { fill } from "./color.ts";
import { h } from "./dom.ts";
import { type Cell, type Window, cellsBelow, layout, levelsBelow } from "./layout.ts";
import { SUNBURST_LEVELS, arcLabel, centre, placeArc, sunburstCell, sunburstFrame } from "./sunburst.ts";
import { FLAME_LEVELS, flameCell, flameFrame, placeRow } from "./flame.ts";

export type View = "sunburst" | "icicle" | "flame";

export interface ChartEvents {
  /** Another frame is in focus. */
  focus(frame: Frame): void;
  /** The pointer or keyboard is on a frame, or on none. */
  point(frame: Frame | null): void;
}

/** How frames look where that differs from the report. */
export interface ChartLook {
  /** Size of labels in the sunburst, of the usual one: a smaller drawing needs larger ones. */
  labels: number;
  fill(frame: Frame): string;
  /** Classes of a frame's element. */
  classes(frame: Frame): string[];
  /** What is said of the frame pointed at. */
  tip(frame: Frame): Node[];
}

export interface Found {
  functions: number;
  contexts: number;
  fraction: number;
}

const MOVE_MS = 380;

export class Chart {
  readonly element = h("div", { class: "chart" });
  private readonly tip = h("div", { class: "tip", role: "status", hidden: true });
  private frames: Frame[] = [];
  private root!: Cell;
  private focused!: Cell;
  private weight: Weight = "insns";
  private view: View = "sunburst";
  private query = "";
  private window!: Window;
  private svg: SVGSVGElement | null = null;
  private cells = new Map<number, { cell: Cell; element: SVGElement }>();
  private active = 0;
  private moving = 0;

  constructor(private readonly events: ChartEvents, private readonly look?: ChartLook) {
    document.body.append(this.tip);
    this.element.addEventListener("click", (event) => this.onClick(event));
    this.element.addEventListener("pointermove", (event) => this.onPoint(event));
    this.element.addEventListener("pointerleave", () => this.leave());
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.element.addEventListener("focusin", (event) => this.onFocusIn(event));
    let width = 0;
    new ResizeObserver(() => {
      if (this.view !== "sunburst" && this.element.clientWidth !== width && this.root) this.draw();
      width = this.element.clientWidth;
    }).observe(this.element);
  }

  setTree(frames: Frame[]): void {
    this.frames = frames;
    this.active = 0;
    this.relayout(0);
  }

  setWeight(weight: Weight): void {
    this.weight = weight;
    if (this.frames.length > 0) this.relayout(this.focused.data.index);
  }

  setView(view: View): void {
    this.view = view;
    this.window = this.windowOf(this.focused);
    this.draw();
  }

  get focus(): Frame {
    return this.focused.data;
  }

  /** Marks frames by name or module; an empty query ends the search. */
  search(query: string): Found | null {
    this.query = query.trim().toLowerCase();
    this.mark();
    if (!this.query) return null;
    const functions = new Set<string>();
    const found = { functions: 0, contexts: 0, fraction: 0 };
    let weight = 0;
    const inside = new Uint8Array(this.frames.length);
    for (const frame of this.frames) {
      const above = frame.parent !== null && inside[frame.parent.index] === 1;
      const hit = this.matches(frame);
      inside[frame.index] = hit || above ? 1 : 0;
      if (!hit) continue;
      found.contexts++;
      functions.add(`${frame.module}\0${frame.name}`);
      if (!above) weight += frame.total[this.weight]; // what calls itself counts once
    }
    found.functions = functions.size;
    found.fraction = share(weight, this.frames[0].total[this.weight]);
    return found;
  }

  /** Brings a frame into focus. */
  zoom(frame: Frame): void {
    const cell = this.root.find((node) => node.data === frame);
    if (!cell || cell === this.focused) return;
    this.focused = cell;
    this.active = frame.index;
    const from = this.window;
    this.window = this.windowOf(cell);
    this.draw(from);
    this.events.focus(frame);
  }

  /** Marks the frame that is pointed at elsewhere. */
  link(frame: Frame | null): void {
    for (const marked of this.element.querySelectorAll(".linked")) marked.classList.remove("linked");
    const element = frame && this.cells.get(frame.index)?.element;
    if (!element) return;
    element.classList.add("linked");
  }

  /** The frames on show, from the focus inwards, and their share of everything: for the table behind the chart. */
  shown(): { frame: Frame; depth: number; fraction: number }[] {
    const cells = [...this.cells.values()].map(({ cell }) => cell).sort((a, b) => a.depth - b.depth || a.x0 - b.x0);
    return cells.map(({ data, depth }) => ({ frame: data, depth: depth - this.focused.depth, fraction: share(data.total[this.weight], this.frames[0].total[this.weight]) }));
  }

  /** Draws again: what frames look like has changed. */
  refresh(): void {
    this.draw();
  }

  private relayout(focus: number): void {
    this.root = layout(this.frames, this.weight);
    this.focused = this.root.find((node) => node.data.index === focus) ?? this.root;
    // A context can weigh nothing on the other scale: then there is nothing to show of it.
    while (this.focused.parent && this.focused.x1 <= this.focused.x0) this.focused = this.focused.parent;
    this.window = this.windowOf(this.focused);
    this.draw();
    this.events.focus(this.focused.data);
  }

  private windowOf(cell: Cell): Window {
    const limit = this.view === "sunburst" ? SUNBURST_LEVELS : FLAME_LEVELS;
    return { x0: cell.x0, x1: Math.max(cell.x1, cell.x0 + 1e-12), depth: cell.depth, levels: levelsBelow(cell, limit) };
  }

  private draw(from?: Window): void {
    cancelAnimationFrame(this.moving);
    const hadFocus = this.element.contains(document.activeElement);
    const to = this.window;
    const shown = new Map<number, Cell>();
    const add = (window: Window, top: Cell) => {
      for (const cell of cellsBelow(top, window)) shown.set(cell.data.index, cell);
    };
    add(to, this.focused);
    for (let at = this.focused.parent; at; at = at.parent) if (this.view !== "sunburst") shown.set(at.data.index, at);
    const calm = !from || matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!calm) add(from, this.focused);

    const sunburst = this.view === "sunburst";
    const rows = { width: Math.max(320, this.element.clientWidth), rows: to.depth + to.levels + 1, up: this.view === "flame" };
    this.svg = sunburst ? sunburstFrame() : flameFrame(rows);
    this.svg.setAttribute("role", "group");
    this.svg.setAttribute("aria-label", `Calls by ${weightName(this.weight)}; arrow keys move, Enter zooms in, Escape zooms out`);
    this.cells.clear();
    for (const [index, cell] of [...shown].sort((a, b) => a[1].depth - b[1].depth)) {
      if (sunburst && cell === this.focused) continue;
      const color = (this.look?.fill ?? fill)(cell.data);
      const element = sunburst ? sunburstCell(color) : flameCell(color);
      element.classList.add(...(this.look?.classes(cell.data) ?? []));
      this.describe(element, cell.data);
      if (!sunburst && cell.depth < this.focused.depth) element.classList.add("above");
      this.cells.set(index, { cell, element });
      this.svg.append(element);
    }
    if (sunburst) {
      const frame = this.focused.data;
      const fraction = percent(share(frame.total[this.weight], this.frames[0].total[this.weight]));
      const back = this.focused.parent ? "go back" : weightName(this.weight);
      const middle = centre(this.focused, [frame.name, fraction, back], this.look?.labels ?? 1);
      this.describe(middle, frame);
      // The name that is spoken has the words that are read.
      const words = [...middle.querySelectorAll("text")].map((text) => text.textContent).join("");
      middle.setAttribute("aria-label", `${words}: ${middle.getAttribute("aria-label")}`);
      this.cells.set(frame.index, { cell: this.focused, element: middle });
      this.svg.append(middle);
    }
    const place = (window: Window) => {
      for (const { cell, element } of this.cells.values()) {
        if (!sunburst) placeRow(element as SVGGElement, cell, window, rows);
        else if (cell !== this.focused) placeArc(element as SVGPathElement, cell, window);
      }
    };
    const finish = () => {
      place(to);
      if (sunburst) this.addLabels(to);
    };
    this.element.replaceChildren(this.svg);
    this.element.classList.toggle("rows", !sunburst);
    if (calm) finish();
    else this.animate(from, to, place, finish);
    if (rows.up && !sunburst) this.element.scrollTop = this.element.scrollHeight;
    this.mark();
    this.setActive(this.cells.has(this.active) ? this.active : this.focused.data.index, hadFocus);
    this.leave();
  }

  private animate(from: Window, to: Window, place: (window: Window) => void, finish: () => void): void {
    const start = performance.now();
    const mix = (a: number, b: number, t: number) => a + (b - a) * t;
    const step = (now: number) => {
      const linear = Math.min(1, Math.max(0, (now - start) / MOVE_MS));
      if (linear === 1) return finish();
      const t = linear < 0.5 ? 4 * linear ** 3 : 1 - (-2 * linear + 2) ** 3 / 2;
      place({ x0: mix(from.x0, to.x0, t), x1: mix(from.x1, to.x1, t), depth: mix(from.depth, to.depth, t), levels: mix(from.levels, to.levels, t) });
      this.moving = requestAnimationFrame(step);
    };
    place(from);
    this.moving = requestAnimationFrame(step);
  }

  private addLabels(window: Window): void {
    for (const { cell, element } of this.cells.values()) {
      const label = cell === this.focused ? null : arcLabel(cell, window, this.look?.labels ?? 1);
      if (!label) continue;
      element.after(label);
    }
  }

  private describe(element: SVGElement, frame: Frame): void {
    element.dataset.frame = String(frame.index);
    element.setAttribute("role", "button");
    element.setAttribute("tabindex", "-1");
    const fraction = percent(share(frame.total[this.weight], this.frames[0].total[this.weight]));
    element.setAttribute("aria-label", `${frame.name}, ${fraction} of ${weightName(this.weight)}, ${plural(frame.calls, "call")}`);
  }

  private matches(frame: Frame): boolean {
    return frame.name.toLowerCase().includes(this.query) || (frame.func >= 0 && frame.module.toLowerCase().includes(this.query));
  }

  private mark(): void {
    this.element.classList.toggle("searching", this.query !== "");
    for (const { cell, element } of this.cells.values()) {
      element.classList.toggle("hit", this.query !== "" && this.matches(cell.data));
    }
  }

  private frameAt(target: EventTarget | null): Frame | null {
    const element = target instanceof Element ? target.closest<SVGElement>("[data-frame]") : null;
    return element ? (this.frames[Number(element.dataset.frame)] ?? null) : null;
  }

  private onClick(event: Event): void {
    const frame = this.frameAt(event.target);
    if (!frame) return;
    this.zoom(frame === this.focus && frame.parent ? frame.parent : frame);
  }

  private onPoint(event: PointerEvent): void {
    const frame = this.frameAt(event.target);
    if (!frame) return this.leave();
    this.events.point(frame);
    this.showTip(frame, event.clientX, event.clientY);
  }

  private onFocusIn(event: FocusEvent): void {
    const frame = this.frameAt(event.target);
    if (frame) this.events.point(frame);
  }

  private leave(): void {
    this.tip.hidden = true;
    this.events.point(null);
  }

  private showTip(frame: Frame, x: number, y: number): void {
    this.tip.replaceChildren(...(this.look?.tip(frame) ?? this.tipOf(frame)));
    this.tip.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    this.tip.style.left = `${Math.max(4, Math.min(x + 16, innerWidth - width - 8))}px`;
    this.tip.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 12) : y + 18}px`;
  }

  private tipOf(frame: Frame): Node[] {
    const whole = this.frames[0].total[this.weight];
    const here = this.focus.total[this.weight];
    const total = frame.total[this.weight];
    const line = (name: string, value: string) => h("div", {}, h("span", {}, name), h("b", {}, value));
    return [
      h("strong", {}, frame.name),
      h("em", {}, [frame.kind === "call" || frame.kind === "root" ? "" : frame.kind, frame.module].filter(Boolean).join(" · ")),
      line(`of all ${weightName(this.weight)}`, percent(share(total, whole))),
      ...(this.focus.parent ? [line(`of ${this.focus.name}`, percent(share(total, here)))] : []),
      line("instructions", weighed(frame.total.insns, "insns")),
      line("time on CPU", weighed(frame.total.ns, "ns")),
      line("calls", weighed(frame.calls, "insns")),
    ];
  }

  private onKey(event: KeyboardEvent): void {
    const at = this.cells.get(this.active)?.cell ?? this.focused;
    const siblings = (at.parent?.children ?? []).filter((cell) => this.cells.has(cell.data.index));
    const place = siblings.indexOf(at);
    let next: Cell | undefined | null;
    switch (event.key) {
      case "ArrowDown": next = at.children?.find((cell) => this.cells.has(cell.data.index)); break;
      case "ArrowUp": next = at === this.focused ? null : at.parent; break;
      case "ArrowRight": next = siblings[place + 1]; break;
      case "ArrowLeft": next = siblings[place - 1]; break;
      case "Home": next = this.focused; break;
      case "Enter":
      case " ": this.zoom(at === this.focused && at.parent ? at.parent.data : at.data); break;
      case "Escape":
      case "Backspace": if (this.focused.parent) this.zoom(this.focused.parent.data); break;
      default: return;
    }
    event.preventDefault();
    if (next && this.cells.has(next.data.index)) this.setActive(next.data.index, true);
  }

  /** Roving tab stop: exactly one cell can be reached with Tab. */
  private setActive(index: number, focus: boolean): void {
    this.cells.get(this.active)?.element.setAttribute("tabindex", "-1");
    this.active = index;
    const element = this.cells.get(index)?.element;
    element?.setAttribute("tabindex", "0");
    if (focus) element?.focus({ preventScroll: true });
  }
}

/** The way from the root to the focus, each step a button. */
export function breadcrumbs(frame: Frame, go: (frame: Frame) => void): HTMLElement {
  const path = pathTo(frame);
  const items = path.map((step, i) => {
    const last = i === path.length - 1;
    return h("li", {}, h("button", { type: "button", "aria-current": last ? "location" : "false", click: () => go(step) }, step.name));
  });
  return h("ol", {}, ...items);
}
