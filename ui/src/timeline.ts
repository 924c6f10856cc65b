// SPDX-License-Identifier: MIT OR Apache-2.0
// The timeline: the longest calls, a lane a task, callers above what they call. The wheel zooms, dragging moves, a
// double click fits a call; arrow keys and + and - do the same.

import { shade } from "./color.ts";
import type { Data } from "./data.ts";
import { h } from "./dom.ts";
import { duration, exact, plural, tick } from "./format.ts";
import { behind, simpleTable } from "./plots.ts";

export interface Call {
  task: number;
  cpu: number;
  func: number;
  depth: number;
  start: number;
  ns: number;
  interrupt: boolean;
}

const HEIGHT = 16;
const AXIS = 22;
const LEFT = 150;
/** Rows of the table behind it. */
const TABLE = 300;
/** Levels of one task, and rows of all. */
const LEVELS = 40;
const ROWS = 400;

export function calls(data: Data): Call[] {
  const own = data.durations!.slices;
  return own.task.map((task, i) => ({
    task, cpu: own.cpu[i], func: own.func[i], depth: own.depth[i], start: own.start_ns[i], ns: own.ns[i], interrupt: own.interrupt[i] === 1,
  }));
}

export function taskName(data: Data, task: number): string {
  const known = data.tasks[task];
  return known ? `${known.comm} [${known.pid}]` : "";
}

interface Lane {
  name: string;
  /** First row, and how many. */
  row: number;
  levels: number;
  least: number;
  calls: Call[];
}

/** Tasks with calls, the busiest first. */
function lanes(data: Data, all: Call[]): { lanes: Lane[]; rows: number; omitted: number } {
  const byTask = new Map<number, Call[]>();
  for (const call of all) {
    const own = byTask.get(call.task);
    if (own) own.push(call);
    else byTask.set(call.task, [call]);
  }
  const outermost = (own: Call[]) => {
    let [sum, end] = [0, 0];
    for (const call of own) {
      sum += Math.max(0, call.start + call.ns - Math.max(end, call.start));
      end = Math.max(end, call.start + call.ns);
    }
    return sum;
  };
  const sorted = [...byTask].sort((a, b) => outermost(b[1]) - outermost(a[1]) || a[0] - b[0]);
  const out: Lane[] = [];
  let rows = 0;
  for (const [task, own] of sorted) {
    const depths = own.map((call) => call.depth);
    const least = depths.reduce((a, b) => Math.min(a, b));
    const levels = Math.min(LEVELS, depths.reduce((a, b) => Math.max(a, b)) - least + 1);
    if (rows > 0 && rows + levels > ROWS) break;
    out.push({ name: taskName(data, task), row: rows, levels, least, calls: own });
    rows += levels;
  }
  return { lanes: out, rows, omitted: sorted.length - out.length };
}

/** 1, 2 or 5 times a power of ten. */
function niceStep(ns: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(ns, 1)));
  return ([1, 2, 5, 10].find((n) => n * power >= ns) ?? 10) * power;
}

export interface Timeline {
  element: HTMLElement;
  /** Brings a call into view. */
  show(call: Call): void;
}

export function timeline(data: Data): Timeline {
  const own = data.durations!;
  const length = Math.max(own.slices.to_ns - own.slices.from_ns, 1);
  const { lanes: all, rows, omitted } = lanes(data, calls(data));
  const canvas = h("canvas", { class: "calls", role: "img", tabindex: 0, "aria-label": `Timeline of ${plural(own.slices.task.length, "call")} of ${plural(all.length, "task")}` });
  const tip = h("div", { class: "tip", role: "status", hidden: true });
  document.body.append(tip);
  const context = canvas.getContext("2d")!;
  let [from, to] = [0, length];
  let marked: Call | null = null;
  const scale = () => (canvas.clientWidth - LEFT) / (to - from);
  const x = (ns: number) => LEFT + (ns - from) * scale();

  const draw = () => {
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, AXIS + rows * HEIGHT + 4];
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const css = getComputedStyle(document.documentElement);
    const color = (name: string) => css.getPropertyValue(name).trim();
    const [ink, muted, line] = [color("--ink"), color("--muted"), color("--line")];
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const step = niceStep((to - from) / 8);
    for (let ns = Math.ceil(from / step) * step; ns <= to; ns += step) {
      context.fillStyle = line;
      context.fillRect(x(ns), AXIS, 1, height);
      context.fillStyle = muted;
      context.fillText(ns === 0 ? "0" : tick(ns), x(ns) + 2, AXIS / 2);
    }
    for (const lane of all) {
      const top = AXIS + lane.row * HEIGHT;
      context.fillStyle = line;
      context.fillRect(0, top, width, 1);
      context.fillStyle = ink;
      context.fillText(lane.name.slice(0, 24), 2, top + HEIGHT / 2);
    }
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, height);
    context.clip();
    for (const lane of all) {
      // What is thinner than a pixel is drawn once.
      const drawn = new Map<number, number>();
      for (const call of lane.calls) {
        const level = call.depth - lane.least;
        const [left, right] = [x(call.start), x(call.start + call.ns)];
        if (level >= lane.levels || right < LEFT || left > width) continue;
        const end = Math.max(right, left + 0.6);
        if (end < (drawn.get(level) ?? 0) + 0.3) continue;
        drawn.set(level, end);
        const top = AXIS + (lane.row + level) * HEIGHT + 1;
        const name = data.funcs.name[call.func];
        const isModule = data.modules[data.funcs.module[call.func]] !== "[kernel]";
        context.fillStyle = shade(call.interrupt ? "interrupt" : isModule ? "module" : "kernel", name);
        context.fillRect(left, top, end - left, HEIGHT - 2);
        if (call === marked) {
          context.strokeStyle = ink;
          context.lineWidth = 2;
          context.strokeRect(left, top, end - left, HEIGHT - 2);
        }
        const begin = Math.max(left, LEFT) + 3;
        const room = Math.floor((Math.min(right, width) - begin) / 6);
        if (room > 3) {
          context.fillStyle = "#222";
          context.fillText(name.slice(0, room), begin, top + HEIGHT / 2 - 1);
        }
      }
    }
    context.restore();
  };
  const view = (left: number, right: number) => {
    const width = Math.min(Math.max(right - left, 100), length);
    from = Math.max(0, Math.min(left, length - width));
    to = from + width;
    draw();
    if (table.open) table.dispatchEvent(new Event("toggle"));
  };
  const zoom = (by: number, at: number) => view(at - (at - from) * by, at + (to - at) * by);
  const under = (event: MouseEvent): Call | undefined => {
    const row = Math.floor((event.offsetY - AXIS) / HEIGHT);
    const lane = all.find((lane) => row >= lane.row && row < lane.row + lane.levels);
    const ns = from + (event.offsetX - LEFT) / scale();
    const slack = 2 / scale();
    const near = lane?.calls.filter((call) => call.depth - lane.least === row - lane.row && ns >= call.start - slack && ns <= call.start + call.ns + slack);
    return near?.sort((a, b) => Math.abs(a.start + a.ns / 2 - ns) - Math.abs(b.start + b.ns / 2 - ns))[0];
  };
  let drag: { x: number; from: number } | null = null;
  canvas.addEventListener("wheel", (event) => {
    // The page scrolls as ever unless it is meant.
    if (!event.ctrlKey && !event.shiftKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, from + (event.offsetX - LEFT) / scale());
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, from };
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => (drag = null));
  canvas.addEventListener("dblclick", (event) => {
    const call = under(event);
    if (call) view(call.start - call.ns * 0.05, call.start + call.ns * 1.05);
    else view(0, length);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const left = drag.from - (event.offsetX - drag.x) / scale();
      view(left, left + to - from);
    }
    const call = under(event);
    tip.hidden = !call;
    if (!call) return;
    tip.replaceChildren(h("strong", {}, data.funcs.name[call.func]),
      h("div", {}, h("span", {}, "took"), h("b", {}, duration(call.ns))),
      h("div", {}, h("span", {}, "from"), h("b", {}, duration(call.start))),
      h("div", {}, h("span", {}, "task"), h("b", {}, `${taskName(data, call.task)} on CPU ${call.cpu}`)));
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 16, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.max(4, event.clientY - tip.offsetHeight - 12)}px`;
  });
  canvas.addEventListener("pointerleave", () => (tip.hidden = true));
  canvas.addEventListener("keydown", (event) => {
    const width = to - from;
    if (event.key === "+" || event.key === "=") zoom(0.7, (from + to) / 2);
    else if (event.key === "-") zoom(1.4, (from + to) / 2);
    else if (event.key === "ArrowLeft") view(from - width / 5, to - width / 5);
    else if (event.key === "ArrowRight") view(from + width / 5, to + width / 5);
    else return;
    event.preventDefault();
  });
  new ResizeObserver(draw).observe(canvas);
  addEventListener("themechange", draw);
  const whole = h("button", { type: "button", class: "more", click: () => view(0, length) }, "Whole time");
  const table = behind(() => {
    const shown = all.flatMap((lane) => lane.calls.map((call) => ({ lane, call }))).filter(({ call }) => call.start <= to && call.start + call.ns >= from);
    const rows = shown.slice(0, TABLE).map(({ lane, call }) => [lane.name, data.funcs.name[call.func], duration(call.start), duration(call.ns), String(call.cpu)]);
    const note = shown.length > TABLE ? `The first ${exact(TABLE)} of ${plural(shown.length, "call")}; zoom in for others.` : plural(shown.length, "call");
    return h("div", {}, h("p", { class: "note" }, note), simpleTable("Calls on show", ["task", "function", "from", "took", "CPU"], rows, 2));
  }, "What is on show as a table");
  const notes = [`${exact(own.slices.task.length)} calls`];
  if (own.slices_omitted > 0) notes.push(`${plural(own.slices_omitted, "shorter one is", "shorter ones are")} not in this file`);
  if (omitted > 0) notes.push(`${plural(omitted, "task")} with less left out`);
  const help = "click, then wheel or + and -: zoom; drag or arrows: move; double click: fit";
  const element = all.length === 0
    ? h("p", { class: "note" }, "No call is known by itself: functions were counted while recording.")
    : h("div", {}, h("p", { class: "note" }, `${notes.join("; ")} (${help}). `, whole), canvas, table);
  const show = (call: Call) => {
    const same = (other: Call) => other.task === call.task && other.start === call.start && other.func === call.func && other.depth === call.depth;
    marked = all.flatMap((lane) => lane.calls).find(same) ?? null;
    view(call.start - call.ns * 0.3, call.start + call.ns * 1.3);
    canvas.scrollIntoView({ block: "center" });
  };
  return { element, show };
}
