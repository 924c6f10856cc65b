// SPDX-License-Identifier: MIT OR Apache-2.0
// Lines of `kprism script` for a stretch of time, fetched when somebody wants them.

import { h } from "./dom.ts";
import { exact, plural } from "./format.ts";
import { ask, served } from "./served.ts";

interface Lines {
  lines: string[];
  cut: boolean;
  remarks: string[];
}

/** Whose instructions: a CPU's, a task's, or a task's on a CPU. */
export interface Whose {
  cpu: number | null;
  task: number | null;
}

/** A button that shows instructions from one time to another below it, and a way to press it; null in a page without a server.
 * `insns` is how many there are, if that is known. */
export function linesButton(whose: Whose, from: number, to: number, insns: number | null): { element: HTMLElement; show: () => void } | null {
  if (!served) return null;
  const out = h("div", { class: "fetched-lines" });
  const button = h("button", { type: "button", class: "more show-lines", click: () => void show() }, "Show them here");
  const show = async () => {
    button.disabled = true;
    out.replaceChildren(h("p", { class: "note", role: "status" }, "Decoding the flow up to there …"));
    try {
      const words: Record<string, number | string> = { subject: "insns", from, to };
      if (whose.cpu !== null) words.cpu = whose.cpu;
      if (whose.task !== null) words.task = whose.task;
      const { lines, cut, remarks } = await ask<Lines>("lines", words);
      const left = insns !== null && insns > lines.length ? `; ${exact(insns - lines.length)} more, which` : "; there are more, which";
      out.replaceChildren(
        ...remarks.map((text) => h("p", { class: "note" }, text)),
        h("pre", { class: "flow-lines", tabindex: "0", role: "region", "aria-label": "Instructions of it" }, lines.join("\n")),
        h("p", { class: "note lines-said" }, cut ? `The first ${plural(lines.length, "line")}${left} the command prints.` : `${plural(lines.length, "line")}.`));
    } catch (error) {
      out.replaceChildren(h("p", { class: "warning" }, (error as Error).message));
      button.disabled = false;
    }
  };
  return { element: h("div", {}, button, out), show: () => void show() };
}
