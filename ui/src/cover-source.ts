// SPDX-License-Identifier: MIT OR Apache-2.0
// A source file with the counts of its lines.

import { h } from "./dom.ts";
import { exact, plural } from "./format.ts";
import type { Branch, Content, Line } from "./cover-data.ts";

/** Lines that are laid out at once; others wait until they are near. */
const CHUNK = 250;

const isBranch = (branch: Branch) => branch.kind !== "call";

/** How a line stands: executed, in part, not, by other runs only; or no code. */
function state(line: Line | undefined, run: number): string {
  if (!line) return "none";
  if (line.count === 0) return "missed";
  if (run >= 0 && !line.runs.includes(run)) return "other";
  const ways = line.branches.filter(isBranch);
  return line.partly || ways.some((branch) => branch.taken === 0) ? "partly" : "hit";
}

/** `1-3,7`. */
export function runNumbers(runs: number[]): string {
  const words: string[] = [];
  for (let i = 0; i < runs.length; ) {
    let j = i;
    while (runs[j + 1] === runs[j] + 1) j++;
    words.push(i === j ? `${runs[i] + 1}` : `${runs[i] + 1}-${runs[j] + 1}`);
    i = j + 1;
  }
  return words.join(",");
}

function told(branch: Branch, index: number): string {
  const [what, done] = isBranch(branch) ? ["branch", "taken"] : ["call", "returned"];
  if (branch.executed === 0) return `${what} ${index}: never executed`;
  const share = ((100 * branch.taken) / branch.executed).toFixed(1);
  const how = branch.kind === "fallthrough" ? " (fallthrough)" : branch.kind === "throw" ? " (throw)" : "";
  return `${what} ${index}: ${done} ${exact(branch.taken)} of ${exact(branch.executed)} (${share}%)${how}`;
}

/** Opens the branches and calls of a line below it, or closes them. */
function toggle(row: HTMLElement, line: Line): void {
  const below = row.nextElementSibling;
  if (below?.classList.contains("ways")) return below.remove();
  row.after(h("ol", { class: "ways" }, ...line.branches.map((branch, i) =>
    h("li", { class: branch.taken === 0 ? "missed" : "" }, told(branch, i))),
    ...line.conditions.map((condition) => h("li", { class: condition.includes("never") ? "missed" : "" }, condition))));
}

function row(number: number, line: Line | undefined, text: string, withRuns: boolean, run: number): HTMLElement {
  const ways = line?.branches.filter(isBranch) ?? [];
  const count = !line ? "" : line.count === 0 ? "0" : exact(line.count);
  const label = ways.length > 0 ? `${ways.filter((branch) => branch.taken !== 0).length}/${ways.length}` : line?.branches.length ? "call" : "";
  const element = h("div", { class: `line ${state(line, run)}`, id: `L${number}` });
  const branches = label && line
    ? h("button", { type: "button", class: "branches", title: line.branches.map(told).join("\n"), click: () => toggle(element, line) }, label)
    : h("span");
  element.append(
    h("a", { class: "number", href: `${location.hash.replace(/:\d+$/, "")}:${number}` }, String(number)),
    h("span", { class: "count" }, line?.partly && line.count !== 0 ? `${count}*` : count),
    branches,
  );
  if (withRuns) element.append(h("span", { class: "by" }, runNumbers(line?.runs ?? [])));
  element.append(h("code", {}, text));
  return element;
}

export interface SourceView {
  element: HTMLElement;
  /** Scrolls to a line and marks it. */
  show: (line: number) => void;
}

export function sourceView(content: Content, runs: number, run: number): SourceView {
  const last = Math.max(content.text?.length ?? 0, content.last);
  const numbers: number[] = [];
  if (content.text) for (let number = 1; number <= last; number++) numbers.push(number);
  else numbers.push(...content.lines.keys());
  const chunks: HTMLElement[] = [];
  for (let start = 0; start < numbers.length; start += CHUNK) {
    const own = numbers.slice(start, start + CHUNK);
    const chunk = h("div", { class: "chunk" }, ...own.map((number) =>
      row(number, content.lines.get(number), content.text?.[number - 1] ?? "", runs > 1, run)));
    chunk.style.containIntrinsicSize = `auto ${own.length * 18}px`;
    chunks.push(chunk);
  }
  const body = h("div", { class: runs > 1 ? "source with-runs" : "source", tabindex: "0" }, ...chunks);
  const missed = numbers.filter((number) => ["missed", "other"].includes(state(content.lines.get(number), run)));
  const partly = numbers.filter((number) => state(content.lines.get(number), run) === "partly");
  let at = 0;
  const show = (line: number) => {
    const found = body.querySelector(`#L${line}`);
    if (!found) return;
    for (const old of body.querySelectorAll(".aim")) old.classList.remove("aim");
    found.classList.add("aim");
    found.scrollIntoView({ block: "center" });
    at = line;
  };
  const go = (forward: boolean) => {
    // From one stretch of such lines to the next.
    const starts = missed.filter((line, i) => i === 0 || missed[i - 1] !== line - 1);
    const next = forward ? starts.find((line) => line > at) ?? starts[0] : [...starts].reverse().find((line) => line < at) ?? starts[starts.length - 1];
    if (next === undefined) return;
    show(next);
    // The address is that of what is looked at. Replaced, so that going back leaves the file.
    history.replaceState(null, "", `${location.hash.replace(/:\d+$/, "")}:${next}`);
  };
  const bar = h("div", { class: "controls" },
    h("span", { class: "found" }, `${plural(missed.length, "line")} not executed, ${exact(partly.length)} in part`),
    h("button", { type: "button", class: "previous", title: "Key p", click: () => go(false) }, "Previous not executed"),
    h("button", { type: "button", class: "next", title: "Key n", click: () => go(true) }, "Next not executed"));
  const element = h("div", {}, bar, content.text ? null : h("p", { class: "note" }, "The source could not be read: lines with code only."), body);
  element.addEventListener("step", (event) => go((event as CustomEvent<boolean>).detail));
  return { element, show };
}
