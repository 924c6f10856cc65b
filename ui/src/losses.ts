// SPDX-License-Identifier: MIT OR Apache-2.0
// What is not in the numbers: where decoding failed, on which CPU, and how much was lost.

import type { AccountEntry, CpuRow, Data, ErrorRow } from "./data.ts";
import { h } from "./dom.ts";
import { count, duration, exact, percent, share } from "./format.ts";
import { SortedTable } from "./tables.ts";

export function losses(data: Data): DocumentFragment {
  const out = document.createDocumentFragment();
  const whole = isWhole(data.header.account);
  out.append(h("p", { class: whole ? "good" : "warning" },
    whole ? "Everything that was recorded was decoded: nothing lost, guessed or not understood."
      : whole === null ? "It is not known whether everything is in these numbers."
      : "Not everything is in the numbers above: they are of what was decoded."));
  out.append(account(data.header.account));
  if (data.errors.length > 0) {
    out.append(timeline(data));
    const table = new SortedTable<ErrorRow>({
      caption: "decode errors",
      columns: [
        { head: "CPU", key: (e) => e.cpu, show: (e) => String(e.cpu) },
        { head: "time", key: (e) => e.time_ns, show: (e) => duration(e.time_ns) },
        { head: "stream offset", key: (e) => Number(e.offset), show: (e) => e.offset },
        { head: "last address", key: (e) => e.ip, show: (e) => e.ip },
        { head: "what", key: (e) => e.kind, show: (e) => e.kind },
      ],
      sort: 1,
      filter: (e) => `${e.kind} ${e.ip} ${e.offset}`,
      empty: "None.",
    });
    table.setRows(data.errors);
    out.append(table.element);
    if (data.errors_omitted > 0) out.append(h("p", { class: "note" }, `and ${exact(data.errors_omitted)} more; the run folder has them all.`));
  }
  const cpus = new SortedTable<CpuRow>({
    caption: "CPUs",
    columns: [
      { head: "CPU", key: (c) => c.cpu, show: (c) => String(c.cpu) },
      { head: "instructions", key: (c) => c.instructions, show: (c) => count(c.instructions) },
      { head: "branches", key: (c) => c.branches, show: (c) => count(c.branches) },
      { head: "errors", key: (c) => c.errors, show: (c) => exact(c.errors) },
      { head: "lost bytes", key: (c) => c.lost_bytes, show: (c) => exact(c.lost_bytes) },
      { head: "from", key: (c) => c.first_ns, show: (c) => duration(c.first_ns) },
      { head: "to", key: (c) => c.last_ns, show: (c) => duration(c.last_ns) },
    ],
    sort: 1,
    empty: "No CPU has a stream.",
  });
  cpus.setRows(data.cpus);
  out.append(h("h3", {}, "Streams"), cpus.element);
  return out;
}

/** A count that makes the result incomplete: it is not known to be zero. */
const isFault = (entry: AccountEntry) => entry.fate !== "seen" && entry.fate !== "kept" && entry.count !== 0;

/** Whether nothing was lost, guessed or not understood; null where there is no account. */
export function isWhole(entries: AccountEntry[] | null): boolean | null {
  return entries && entries.length > 0 ? !entries.some(isFault) : null;
}

/** "whole", "not whole", "not known". */
export function wholeness(entries: AccountEntry[] | null): string {
  const whole = isWhole(entries);
  return whole === null ? "not known" : whole ? "whole" : "not whole";
}

/** What was seen, kept, lost, not understood and guessed. */
export function account(entries: AccountEntry[] | null): HTMLElement {
  if (!entries) return h("p", { class: "note" }, "Account: not known; an older kprism made these tables.");
  const list = h("dl", { class: "account" });
  for (const entry of entries) {
    const fault = isFault(entry);
    const text = entry.count === null ? `${entry.unit} not known` : `${exact(entry.count)} ${entry.unit}`;
    list.append(h("dt", {}, entry.fate.replace("_", " ")), h("dd", fault ? { class: "bad" } : {}, text));
    for (const place of entry.places ?? []) list.append(h("dd", { class: "note" }, place));
  }
  return list;
}

/** A line per CPU with a mark at each error. */
function timeline(data: Data): HTMLElement {
  const cpus = data.cpus.filter((cpu) => cpu.last_ns > cpu.first_ns);
  const from = Math.min(...cpus.map((cpu) => cpu.first_ns));
  const span = Math.max(...cpus.map((cpu) => cpu.last_ns)) - from;
  const box = h("div", { class: "timeline", "aria-hidden": "true" });
  for (const cpu of cpus) {
    const track = h("div", { class: "track" });
    for (const error of data.errors.filter((e) => e.cpu === cpu.cpu)) {
      const mark = h("span", { class: "mark", title: `${duration(error.time_ns)}: ${error.kind}` });
      mark.style.left = percent(Math.max(0, Math.min(1, share(error.time_ns - from, span))));
      track.append(mark);
    }
    box.append(h("span", {}, `CPU ${cpu.cpu}`), track);
  }
  return box;
}
