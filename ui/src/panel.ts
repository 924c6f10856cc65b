// SPDX-License-Identifier: MIT OR Apache-2.0
// Beside the chart: the frame pointed at or in focus in numbers, and what it calls.

import type { Frame, Weight } from "./data.ts";
import { swatch } from "./color.ts";
import { h } from "./dom.ts";
import { count, duration, exact, percent, plural, share, weighed } from "./format.ts";

const CALLEES = 12;

export function panel(frame: Frame, root: Frame, weight: Weight, zoom: (frame: Frame) => void): DocumentFragment {
  const whole = root.total;
  const row = (name: string, own: string, total: string) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, own), h("td", {}, total));
  const both = (value: number, w: Weight) => `${weighed(value, w)} (${percent(share(value, whole[w]))})`;
  const kind = frame.kind === "call" || frame.kind === "root" ? "" : `entered by ${frame.kind === "tail" ? "tail call" : frame.kind}`;
  const where = [frame.module, kind].filter(Boolean).join(" · ");
  const out = document.createDocumentFragment();
  out.append(
    h("h3", {}, dot(frame), frame.name),
    h("p", { class: "where" }, where || (frame.depth === 0 ? "everything in this view" : "")),
    h("table", { class: "facts" },
      h("thead", {}, h("tr", {}, h("td", {}), h("th", { scope: "col" }, "itself"), h("th", { scope: "col" }, "with callees"))),
      h("tbody", {},
        row("instructions", both(frame.self.insns, "insns"), both(frame.total.insns, "insns")),
        row("time on CPU", both(frame.self.ns, "ns"), both(frame.total.ns, "ns")),
        ...(frame.calls > 0
          ? [row("calls", exact(frame.calls), ""), row("per call", count(Math.round(frame.self.insns / frame.calls)), `${count(Math.round(frame.total.insns / frame.calls))}, ${duration(Math.round(frame.total.ns / frame.calls))}`)]
          : []))),
  );
  const callees = [...frame.children].sort((a, b) => b.total[weight] - a.total[weight]);
  if (callees.length > 0) {
    const list = h("ol", { class: "callees" });
    const most = callees[0].total[weight];
    for (const callee of callees.slice(0, CALLEES)) {
      const bar = h("span", { class: "bar" });
      bar.style.width = `${share(callee.total[weight], most) * 100}%`;
      bar.style.background = swatch(callee.origin);
      list.append(h("li", {}, h("button", { type: "button", click: () => zoom(callee) },
        bar, h("span", { class: "name" }, callee.name), h("span", { class: "value" }, percent(share(callee.total[weight], whole[weight]))))));
    }
    out.append(h("h4", {}, frame.depth === 0 ? "Made of" : "Calls"), list);
    if (callees.length > CALLEES) out.append(h("p", { class: "note" }, `and ${plural(callees.length - CALLEES, "more", "more")}`));
  }
  return out;
}

function dot(frame: Frame): HTMLElement {
  const dot = h("span", { class: "dot" });
  dot.style.background = swatch(frame.origin);
  return dot;
}
