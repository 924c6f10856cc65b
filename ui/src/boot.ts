// SPDX-License-Identifier: MIT OR Apache-2.0
// The chart of a boot: a row of bars a task, initcalls above, what they called below; wheel zooms, dragging moves,
// the search marks. Two boots stand one above the other and move together.

import "./boot.css";
import { h } from "./dom.ts";
import { duration, exact, tick } from "./format.ts";
import { markReady } from "./ready.ts";
import { searchKey } from "./search-key.ts";
import { themeButton } from "./theme.ts";

interface Side {
  title: string;
  span: [number, number];
  names: string[];
  tasks: [number, string][];
  /** name, module (-1 if none), level, pid, start, ns, result. */
  initcalls: [number, number, number, number, number, number, number | null][];
  /** name, pid, depth, start, ns. */
  calls: [number, number, number, number, number][];
  notes: string;
}

interface Bar {
  name: string;
  detail: string;
  row: number;
  start: number;
  ns: number;
  initcall: boolean;
  failed: boolean;
}

const HEIGHT = 17;
const AXIS = 22;
const LEFT = 130;

/** Bars of a side in rows, and what the rows are called. */
function layOut(side: Side): { bars: Bar[]; rows: string[] } {
  const names = new Map(side.tasks);
  const depths = new Map<number, number>();
  const see = (pid: number, depth: number) => depths.set(pid, Math.max(depths.get(pid) ?? 0, depth));
  const open: { pid: number; end: number }[] = [];
  // Initcalls nest when one loads a module that has its own.
  const nested = side.initcalls.map(([, , , pid, start, ns]) => {
    while (open.length > 0 && open[open.length - 1]!.end <= start) open.pop();
    const level = open.filter((call) => call.pid === pid).length;
    open.push({ pid, end: start + ns });
    see(pid, level + 1);
    return level;
  });
  const least = new Map<number, number>();
  for (const [, pid, depth] of side.calls) least.set(pid, Math.min(least.get(pid) ?? depth, depth));
  const above = new Map([...depths]);
  for (const [, pid, depth] of side.calls) see(pid, (above.get(pid) ?? 0) + depth - least.get(pid)! + 1);
  const first = new Map<number, number>();
  const rows: string[] = [];
  const pids = [...depths.keys()].sort((a, b) => a - b);
  for (const pid of pids) {
    first.set(pid, rows.length);
    for (let i = 0; i < depths.get(pid)!; i++) rows.push(i === 0 ? `${names.get(pid) ?? "task"} ${pid}` : "");
  }
  const text = (n: number) => side.names[n] ?? "";
  const bars: Bar[] = side.initcalls.map(([name, module, level, pid, start, ns, result], at) => ({
    name: text(name),
    detail: `${text(level)} initcall${module >= 0 ? ` of ${text(module)}` : ""}, ${result === null ? "did not return" : `returned ${result}`}`,
    row: first.get(pid)! + nested[at]!,
    start, ns, initcall: true, failed: (result ?? 0) < 0,
  }));
  for (const [name, pid, depth, start, ns] of side.calls) {
    const row = first.get(pid)! + (above.get(pid) ?? 0) + depth - least.get(pid)!;
    bars.push({ name: text(name), detail: "function", row, start, ns, initcall: false, failed: false });
  }
  return { bars, rows };
}

/** What part of the time is shown; shared by all charts. */
class View {
  from: number;
  to: number;
  redraw: (() => void)[] = [];
  constructor(readonly least: number, readonly most: number) {
    this.from = least;
    this.to = most;
  }
  show(from: number, to: number): void {
    const width = Math.min(Math.max(to - from, 1000), this.most - this.least);
    this.from = Math.max(this.least, Math.min(from, this.most - width));
    this.to = this.from + width;
    this.redraw.forEach((draw) => draw());
  }
}

let wanted = "";
const matches = (bar: { name: string; detail: string }) => wanted !== "" && `${bar.name} ${bar.detail}`.toLowerCase().includes(wanted);

function chart(side: Side, view: View): HTMLElement {
  const { bars, rows } = layOut(side);
  const byRow = new Map<number, Bar[]>();
  for (const bar of bars) {
    const row = byRow.get(bar.row);
    if (row) row.push(bar);
    else byRow.set(bar.row, [bar]);
  }
  const canvas = h("canvas", { class: "chart", role: "img", tabindex: "0", "aria-label": `Timeline of ${side.title}; arrow keys move, + and - zoom, 0 shows the whole boot. The table below has its longest bars.` });
  const tip = h("div", { class: "tip hidden" });
  const found = h("span", { class: "muted found" });
  const context = canvas.getContext("2d")!;
  const zero = side.span[0];
  const scale = () => (canvas.clientWidth - LEFT) / (view.to - view.from);
  const x = (ns: number) => LEFT + (ns - zero - view.from) * scale();

  function draw(): void {
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, AXIS + rows.length * HEIGHT + 4];
    canvas.style.height = `${height}px`;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const css = getComputedStyle(document.documentElement);
    const color = (name: string) => css.getPropertyValue(name).trim();
    const [ink, muted, line, accent, soft, alert, mark] =
      ["--ink", "--muted", "--line", "--accent", "--call", "--alert", "--mark"].map(color) as [string, string, string, string, string, string, string];
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const step = niceStep((view.to - view.from) / 8);
    for (let ns = Math.ceil(view.from / step) * step; ns <= view.to; ns += step) {
      const at = LEFT + (ns - view.from) * scale();
      context.fillStyle = line;
      context.fillRect(at, AXIS, 1, height);
      context.fillStyle = muted;
      // Starts are told on the kernel's clock, as in the log; the axis counts from the first of them.
      context.fillText(ns === 0 ? duration(zero) : `+${tick(ns)}`, at + 2, AXIS / 2);
    }
    context.fillStyle = ink;
    rows.forEach((name, row) => context.fillText(name.slice(0, 22), 2, AXIS + row * HEIGHT + HEIGHT / 2));
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, height);
    context.clip();
    for (const bar of bars) {
      const [left, right] = [x(bar.start), x(bar.start + bar.ns)];
      if (right < LEFT || left > width) continue;
      const hit = matches(bar);
      context.globalAlpha = wanted !== "" && !hit ? 0.25 : 1;
      context.fillStyle = hit ? mark : bar.failed ? alert : bar.initcall ? accent : soft;
      const top = AXIS + bar.row * HEIGHT + 1;
      context.fillRect(left, top, Math.max(right - left, 0.6), HEIGHT - 2);
      if (right - left > 34) {
        context.fillStyle = bar.initcall && !hit ? "#fff" : ink;
        const begin = Math.max(left, LEFT) + 3;
        const room = Math.floor((Math.min(right, width) - begin) / 6);
        if (room > 3) context.fillText(bar.name.slice(0, room), begin, top + HEIGHT / 2 - 1);
      }
    }
    context.restore();
    const hits = wanted === "" ? [] : bars.filter(matches);
    found.textContent = wanted === "" ? "" : `${exact(hits.length)} found, ${duration(hits.reduce((sum, bar) => sum + bar.ns, 0))} in them`;
  }

  function under(event: MouseEvent): Bar | undefined {
    const row = Math.floor((event.offsetY - AXIS) / HEIGHT);
    const ns = zero + view.from + (event.offsetX - LEFT) / scale();
    const slack = 2 / scale();
    const near = (byRow.get(row) ?? []).filter((bar) => ns >= bar.start - slack && ns <= bar.start + bar.ns + slack);
    return near.sort((a, b) => Math.abs(a.start + a.ns / 2 - ns) - Math.abs(b.start + b.ns / 2 - ns))[0];
  }

  let drag: { x: number; from: number } | null = null;
  canvas.addEventListener("keydown", (event) => {
    const [width, middle] = [view.to - view.from, (view.from + view.to) / 2];
    const keys: Record<string, () => void> = {
      "+": () => view.show(middle - width * 0.35, middle + width * 0.35), "-": () => view.show(middle - width * 0.7, middle + width * 0.7),
      ArrowLeft: () => view.show(view.from - width / 5, view.to - width / 5), ArrowRight: () => view.show(view.from + width / 5, view.to + width / 5),
      "0": () => view.show(view.least, view.most),
    };
    const act = keys[event.key === "=" ? "+" : event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const at = view.from + (event.offsetX - LEFT) / scale();
    const by = event.deltaY > 0 ? 1.25 : 0.8;
    view.show(at - (at - view.from) * by, at + (view.to - at) * by);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, from: view.from };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => (drag = null));
  canvas.addEventListener("dblclick", (event) => {
    const bar = under(event);
    if (bar) view.show(bar.start - zero - bar.ns * 0.05, bar.start - zero + bar.ns * 1.05);
    else view.show(view.least, view.most);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const from = drag.from - (event.offsetX - drag.x) / scale();
      view.show(from, from + view.to - view.from);
    }
    const bar = under(event);
    tip.classList.toggle("hidden", !bar);
    if (bar) {
      tip.textContent = `${bar.name}: ${duration(bar.ns)} from ${duration(bar.start)} on; ${bar.detail}`;
      tip.style.left = `${Math.min(event.offsetX + 12, canvas.clientWidth - 340)}px`;
      tip.style.top = `${event.offsetY + 14}px`;
    }
  });
  canvas.addEventListener("pointerleave", () => tip.classList.add("hidden"));
  view.redraw.push(draw);
  new ResizeObserver(draw).observe(canvas);
  const notes = side.notes.trim().split("\n").map((text) => h("p", { class: "muted" }, text));
  return h("section", {}, h("h2", {}, side.title), ...notes, found, h("div", { class: "frame" }, canvas, tip), slowest(side, bars, view, zero));
}

/** 1, 2 or 5 times a power of ten. */
function niceStep(ns: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(ns, 1)));
  return ([1, 2, 5, 10].find((n) => n * power >= ns) ?? 10) * power;
}

const ROWS = 200;

/** The longest bars that the search finds, as a table; a click shows one in the chart. */
function slowest(side: Side, bars: Bar[], view: View, zero: number): HTMLElement {
  const sorted = [...bars].sort((a, b) => b.ns - a.ns);
  const body = h("tbody");
  const fill = () => {
    body.replaceChildren(...sorted.filter((bar) => wanted === "" || matches(bar)).slice(0, ROWS).map((bar) =>
      // A click on the button is one on its row.
      h("tr", { click: () => view.show(bar.start - zero - bar.ns * 0.2, bar.start - zero + bar.ns * 1.2) },
        h("td", { class: "number" }, duration(bar.ns)), h("td", { class: "number" }, duration(bar.start)),
        h("td", {}, h("button", { type: "button", title: "Show it in the chart" }, bar.name)), h("td", { class: bar.failed ? "failed" : "muted" }, bar.detail))));
  };
  fill();
  addEventListener("search", fill);
  return h("details", { open: true }, h("summary", {}, `The longest of ${exact(side.initcalls.length)} initcalls and ${exact(side.calls.length)} calls`),
    h("table", {}, h("caption", {}, sorted.length > ROWS ? `The ${exact(ROWS)} longest of those that the search finds` : "All of them, or those that the search finds"), h("thead", {}, h("tr", {}, ...["duration", "start", "name", "what"].map((name) => h("th", { scope: "col" }, name)))), body));
}

const sides = JSON.parse(document.getElementById("kprism-data")!.textContent!) as Side[];
const length = Math.max(...sides.map((side) => side.span[1] - side.span[0]), 1);
const view = new View(0, length);
const search = h("input", {
  type: "search", placeholder: "Search names…  ( / )", "aria-label": "Search names",
  input: (event: Event) => {
    wanted = (event.target as HTMLInputElement).value.trim().toLowerCase();
    view.redraw.forEach((draw) => draw());
    dispatchEvent(new Event("search"));
  },
});
const whole = h("button", { type: "button", click: () => view.show(0, length) }, "Whole boot");
document.body.append(
  h("header", {}, h("h1", {}, "Boot"), search, whole, h("span", { class: "muted" }, "wheel or + and -: zoom, drag or arrows: move, double click: fit"), themeButton()),
  h("main", {}, ...sides.map((side) => chart(side, view))),
);
addEventListener("themechange", () => view.redraw.forEach((draw) => draw()));
searchKey(search);
markReady();
