// SPDX-License-Identifier: MIT OR Apache-2.0
// What charts have in common: colours that people with any colour vision can tell apart, steps of axes, the box
// at the pointer, the time until the page could be used.

import { h } from "./dom.ts";
import { exact } from "./format.ts";
import { markReady } from "./ready.ts";

/** Okabe and Ito's colours, each with its own dashes, so that colour is never the only difference. */
export const LINES: [string, string][] = [
  ["#0072b2", ""], ["#d55e00", "7 3"], ["#009e73", "2 3"], ["#cc79a7", "9 3 2 3"], ["#e69f00", "4 2"], ["#56b4e9", "1 2"],
  ["#0072b2", "12 4"], ["#d55e00", "2 2 6 2"], ["#009e73", "10 2"], ["#cc79a7", "3 5"], ["#e69f00", "12 2 2 2"], ["#56b4e9", "6 6"], ["#767b8a", ""],
];

/** Dark blue to yellow: lightness grows steadily, so it reads without colour too. */
const RAMP: [number, number, number][] = [[20, 28, 82], [40, 60, 124], [76, 91, 133], [115, 120, 129], [157, 151, 113], [203, 185, 86], [248, 222, 66]];

/** A colour of the ramp, 0 to 1; on a light page large values are dark. */
export function ramp(part: number, dark: boolean): [number, number, number] {
  const at = Math.min(Math.max(dark ? part : 1 - part, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  const mix = (i: 0 | 1 | 2) => Math.round(RAMP[low]![i] + (RAMP[low + 1]![i] - RAMP[low]![i]) * (at - low));
  return [mix(0), mix(1), mix(2)];
}

export function isDark(): boolean {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** 1, 2 or 5 times a power of ten that is not below this. */
export function niceStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1e-12)));
  return ([1, 2, 5, 10].find((n) => n * power >= least) ?? 10) * power;
}

/** A number of any size for axes and boxes. */
export function plain(value: number): string {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return size < 100_000 ? exact(value) : `${exact(value)}`;
  return size !== 0 && (size >= 1e15 || size < 1e-3) ? value.toExponential(3) : String(+value.toPrecision(6));
}

/** An axis's short number: `1.5 M`. */
export function short(value: number): string {
  const size = Math.abs(value);
  for (const [unit, name] of [[1e18, " E"], [1e15, " P"], [1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]] as const) {
    if (size >= unit) return `${+(value / unit).toPrecision(3)}${name}`;
  }
  return String(+value.toPrecision(3));
}

export const tip = h("div", { class: "tip", role: "status", hidden: true });

/** Shows lines of name and value at the pointer. */
export function point(event: { clientX: number; clientY: number }, title: string, below: string, lines: [string, string][]): void {
  tip.replaceChildren(h("strong", {}, title), h("em", {}, below), ...lines.map(([name, value]) => h("div", {}, h("span", {}, name), h("b", {}, value))));
  tip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tip;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 16, innerWidth - width - 8))}px`;
  tip.style.top = `${Math.max(4, event.clientY + height + 24 > innerHeight ? event.clientY - height - 12 : event.clientY + 16)}px`;
}

export const leave = (): void => {
  tip.hidden = true;
};

export const section = (id: string, title: string, ...children: (Node | string | null)[]): HTMLElement =>
  h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), ...children);

/** The numbers of a chart for people who do not see it; made when opened. */
export function behind(make: () => Node, title = "The numbers as a table"): HTMLDetailsElement {
  const box = h("details", { class: "behind" }, h("summary", {}, title));
  box.addEventListener("toggle", () => {
    while (box.childNodes.length > 1) box.lastChild!.remove();
    if (box.open) box.append(make());
  });
  return box;
}

/** A table of texts as they are. */
export function simpleTable(caption: string, heads: string[], rows: string[][], texts = 1): HTMLElement {
  const cell = (text: string, i: number) => h("td", { class: i < texts ? "text" : "" }, text);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, h("table", { class: "rows" }, h("caption", { class: "hidden" }, caption),
    h("thead", {}, h("tr", {}, ...heads.map((head, i) => h("th", { scope: "col", class: i < texts ? "text" : "" }, head)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map(cell))))));
}

/** Says at the end of the page how long it took until it could be used. */
export function ready(): void {
  const ms = markReady();
  document.body.append(h("footer", { class: "note" }, `This page could be used ${exact(ms)} ms after it began to load here.`), tip);
}
