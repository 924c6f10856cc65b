// SPDX-License-Identifier: MIT OR Apache-2.0
// The calling contexts that a chart shows as a table: the same numbers for people who do not see the chart.

import type { Chart } from "./chart.ts";
import { h } from "./dom.ts";
import { duration, exact, percent, plural } from "./format.ts";
import { behind, simpleTable } from "./plots.ts";

/** Rows of the table: as many as a chart has cells wide enough to be seen, as a rule. */
const ROWS = 4000;

/** Made when it is opened; a `toggle` event makes it anew. */
export function chartTable(chart: Chart, title = "What the chart shows as a table"): HTMLDetailsElement {
  return behind(() => {
    const all = chart.shown();
    const rows = all.slice(0, ROWS).map(({ frame, depth, fraction }) => [
      frame.name, frame.module, String(depth), percent(fraction), exact(frame.total.insns), duration(frame.total.ns), exact(frame.calls)]);
    const note = all.length > ROWS ? `The first ${exact(ROWS)} of ${plural(all.length, "calling context")}, outer ones first; zoom in for others.` : plural(all.length, "calling context");
    return h("div", {}, h("p", { class: "note" }, note),
      simpleTable("Calling contexts on show, with what they call", ["function", "module", "level", "share", "instructions", "on a CPU", "calls"], rows, 2));
  }, title);
}
