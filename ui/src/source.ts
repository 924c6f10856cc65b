// SPDX-License-Identifier: MIT OR Apache-2.0
// A function's source lines and instructions with counts, beside each other: embedded in the page, or asked for. Says what is
// missing, and the command that has it.

import "./source.css";
import type { Data } from "./data.ts";
import { h } from "./dom.ts";
import { count, duration, exact, offsetText, percent, plural, printable, share } from "./format.ts";
import { command } from "./intervals.ts";
import { ask, quoted, served } from "./served.ts";

/** Rows that are laid out at once; others wait until they are near. */
const CHUNK = 200;
/** Callers, and callees, that are listed. */
const NEIGHBOURS = 12;

interface Frame {
  function: string | null;
  file: string;
  line: number;
}

interface Instruction {
  offset: number;
  insn: string;
  bytes: string;
  count: number;
  ns: number;
  taken?: number;
  refers?: string;
  version?: number;
  targets?: { to: string; ip: string; count: number }[];
  source?: Frame[];
}

interface SourceLine {
  line: number;
  text?: string;
  count?: number;
  insns?: number;
  inlined?: boolean;
  branches?: { offset: number; taken: number; count: number }[];
}

/** As `annotate/listing.rs` of the script crate makes it. */
export interface Annotated {
  function: string;
  module: string;
  /** The names that it was asked for by; in an embedded one. */
  asked?: { name: string; module: string };
  start: string;
  entered: number;
  instructions: number;
  ns: number;
  instructions_of_all: number;
  ns_of_all: number;
  lines: Instruction[];
  missing: string | null;
  notes: string[];
  remarks?: string[];
  sources: { file: string; has_text: boolean; lines: SourceLine[] }[];
}

/** Several functions of one name and module. */
interface Several {
  several: { function: string; module: string; start: string; instructions: number }[];
}

export interface SourcePanel {
  element: HTMLElement;
  /** Shows a function, and scrolls to the panel. */
  show: (name: string, module: string) => void;
  /** A button that shows a function. */
  button: (name: string, module: string, text: string) => HTMLElement;
}

/** Rows in chunks, so that only those near the window are laid out. */
function chunks(rows: HTMLElement[], height: number): HTMLElement[] {
  const out: HTMLElement[] = [];
  for (let at = 0; at < rows.length; at += CHUNK) {
    const own = rows.slice(at, at + CHUNK);
    const chunk = h("div", { class: "chunk" }, ...own);
    chunk.style.containIntrinsicSize = `auto ${own.length * height}px`;
    out.push(chunk);
  }
  return out;
}

const ratio = (taken: number, all: number) => `${(all === 0 ? 0 : (100 * taken) / all).toFixed(1)}%`;

/** Draws source and instructions; `jump` shows another function by its name. */
function draw(of: Annotated, jump: (name: string) => (() => void) | null): HTMLElement {
  const byLine = new Map<string, HTMLElement[]>();
  const sourceRows = new Map<string, HTMLElement>();
  const key = (file: string, line: number) => `${line}:${file}`;
  const mark = (rows: HTMLElement[], inside: string) => {
    for (const old of document.querySelectorAll(`#source ${inside} .aim`)) old.classList.remove("aim");
    rows.forEach((row) => row.classList.add("aim"));
    rows[0]?.scrollIntoView({ block: "nearest" });
  };
  const most = of.lines.reduce((max, line) => Math.max(max, line.count), 0);
  const heat = (row: HTMLElement, n: number) => row.style.setProperty("--part", `${share(n, most) * 100}%`);
  const named = (text: string): Node => {
    const name = /^<?(.+?)([+-]0x[0-9a-f]+)?>?( \(.*\))?$/.exec(text)?.[1] ?? text;
    const go = /^[+-]0x/.test(text) || name === of.function ? null : jump(name);
    return go ? h("button", { type: "button", class: "jump", click: (event: Event) => { event.stopPropagation(); go(); } }, text) : document.createTextNode(text);
  };

  const instructions = of.lines.map((line) => {
    const own = line.source?.[0];
    const row = h("div", { class: "insn", "data-offset": line.offset, "data-count": line.count, title: `${line.bytes.replace(/(..)/g, "$1 ")}· ${duration(line.ns)}` },
      h("span", { class: "count" }, exact(line.count)),
      h("span", { class: "offset" }, offsetText(line.offset)),
      h("code", {}, line.version ? `v${line.version} ` : "", line.insn.trim(), line.refers ? " " : "", line.refers ? named(line.refers) : null,
        line.taken === undefined ? null : h("span", { class: "taken" }, ` taken ${ratio(line.taken, line.count)}`),
        ...(line.targets ?? []).slice(0, 8).map((target) => h("span", { class: "target" }, " → ", named(target.to), ` ${exact(target.count)}`))));
    if ((line.targets?.length ?? 0) > 8) row.lastElementChild?.append(h("span", { class: "target" }, ` and ${plural((line.targets?.length ?? 0) - 8, "more target", "more targets")}`));
    heat(row, line.count);
    for (const frame of line.source ?? []) {
      const at = key(frame.file, frame.line);
      byLine.set(at, [...(byLine.get(at) ?? []), row]);
    }
    row.addEventListener("click", () => {
      mark([row], ".insns");
      const source = own && sourceRows.get(key(own.file, own.line));
      mark(source ? [source] : [], ".sources");
    });
    return row;
  });

  const files = of.sources.map(({ file, has_text, lines }) => {
    const rows = lines.map((line) => {
      const ways = (line.branches ?? []).map((branch) => `${ratio(branch.taken, branch.count)}`);
      const row = h("div", { class: line.count === undefined ? "line none" : "line", "data-line": line.line },
        h("span", { class: "number" }, String(line.line)),
        h("span", { class: "count" }, line.count === undefined ? "" : exact(line.count)),
        h("span", { class: "taken", title: ways.length > 0 ? (line.branches ?? []).map((b) => `${offsetText(b.offset)}: taken ${exact(b.taken)} of ${exact(b.count)}`).join("\n") : "" },
          ways.length > 0 ? `⤴ ${ways.slice(0, 2).join(" ")}${ways.length > 2 ? " …" : ""}` : line.inlined ? "inlined" : ""),
        h("code", {}, line.text ?? ""));
      if (line.count !== undefined) {
        heat(row, line.count);
        row.dataset.count = String(line.count);
        row.addEventListener("click", () => {
          mark([row], ".sources");
          mark(byLine.get(key(file, line.line)) ?? [], ".insns");
        });
      }
      sourceRows.set(key(file, line.line), row);
      return row;
    });
    return h("div", { class: "file" }, h("h4", {}, printable(file)), has_text ? null : h("p", { class: "note" }, "Its text could not be read: lines with code only."), ...chunks(rows, 18));
  });
  const left = files.length > 0 ? h("div", { class: "sources", tabindex: "0", "aria-label": "Source lines" }, ...files) : null;
  const right = h("div", { class: "insns", tabindex: "0", "aria-label": "Instructions" }, ...chunks(instructions, 18));
  return h("div", { class: left ? "annotated both" : "annotated" }, left, right);
}

/** Who calls a function and what it calls, by the tree of all tasks. */
function neighbours(data: Data, name: string, module: string): { callers: Map<number, number>; callees: Map<number, number> } {
  const is = (ref: number) => ref >= 0 && data.funcs.name[ref] === name && data.modules[data.funcs.module[ref]] === module;
  const tree = data.trees[0];
  const callers = new Map<number, number>();
  const callees = new Map<number, number>();
  const add = (to: Map<number, number>, func: number, calls: number) => to.set(func, (to.get(func) ?? 0) + calls);
  for (let i = 1; i < tree.parent.length; i++) {
    const [own, above] = [tree.ref[i], tree.ref[tree.parent[i]]];
    if (is(own) && above >= 0) add(callers, above, tree.calls[i]);
    if (own >= 0 && is(above)) add(callees, own, tree.calls[i]);
  }
  return { callers, callees };
}

export function sourcePanel(data: Data & { sources?: Annotated[]; sources_omitted?: string[] }): SourcePanel {
  const body = h("div", { id: "source-body" }, h("p", { class: "note" },
    data.sources_omitted?.length ? `This file has no room for the sources of ${plural(data.sources_omitted.length, "function")} that ${data.sources_omitted.length === 1 ? "was" : "were"} asked for. ` : "", "Choose a function: the button “source” in the table above, or beside the chart, shows its source lines and instructions with how often each ran."));
  let pending: AbortController | null = null;

  const button = (name: string, module: string, text: string) => h("button", {
    type: "button", class: "show-source", title: `Source and instructions of ${name}`,
    click: (event: Event) => {
      event.stopPropagation();
      show(name, module);
    },
  }, text);
  const list = (title: string, of: Map<number, number>) => {
    const all = [...of].sort((a, b) => b[1] - a[1]);
    if (all.length === 0) return null;
    const items = all.slice(0, NEIGHBOURS).map(([func, calls]) => h("li", {},
      button(data.funcs.name[func], data.modules[data.funcs.module[func]] ?? "", data.funcs.name[func]), ` ${exact(calls)}`));
    if (all.length > NEIGHBOURS) items.push(h("li", { class: "note" }, `and ${plural(all.length - NEIGHBOURS, "more", "more")}`));
    return h("div", { class: title === "Called by" ? "callers" : "callees" }, h("h4", {}, title), h("ul", {}, ...items));
  };
  const around = (name: string, module: string) => {
    const { callers, callees } = neighbours(data, name, module);
    return h("div", { class: "neighbours" }, list("Called by", callers), list("Calls", callees));
  };
  const jump = (name: string) => {
    const func = data.funcs.name.indexOf(name);
    return func < 0 ? null : () => show(name, data.modules[data.funcs.module[func]] ?? "");
  };
  const heading = (name: string, module: string) => h("h3", {}, name, h("span", { class: "scope-of" }, ` ${module}`));
  const told = (name: string, module: string, of: Annotated) => {
    const notes = [of.missing, ...of.notes, ...(of.remarks ?? [])].filter((note): note is string => !!note);
    body.replaceChildren(heading(name, module),
      h("p", { class: "about-source" }, `entered ${plural(of.entered, "time")}; ${exact(of.instructions)} instructions, ${percent(share(of.instructions, of.instructions_of_all))} of ${count(of.instructions_of_all)}; ${duration(of.ns)}`),
      ...notes.map((note) => h("p", { class: "note missing" }, note)),
      around(name, module), draw(of, jump),
      h("p", { class: "note" }, "A line's count is that of its instruction that ran most often; ⤴ is how often its conditional branches were taken. Choose a line for its instructions, an instruction for its line."));
    body.dataset.shown = name;
  };
  const fetchIt = async (name: string, module: string, start?: string) => {
    pending?.abort();
    const own = new AbortController();
    pending = own;
    body.setAttribute("aria-busy", "true");
    body.replaceChildren(heading(name, module), h("p", { class: "note", role: "status" }, "Decoding the flow once more, to count its instructions …"));
    try {
      const words: Record<string, string> = { name, module };
      if (start) words.start = start;
      const of = await ask<Annotated | Several>("source", words, own.signal);
      if (own.signal.aborted) return;
      if ("several" in of) {
        body.replaceChildren(heading(name, module), h("p", { class: "note" }, "Several functions have this name:"),
          h("ul", { class: "several" }, ...of.several.map((one) => h("li", {},
            h("button", { type: "button", class: "show-source", click: () => void fetchIt(name, module, one.start) }, one.start), ` ${plural(one.instructions, "instruction")}`))));
      } else told(name, module, of);
    } catch (error) {
      if (own.signal.aborted) return;
      body.replaceChildren(heading(name, module), h("p", { class: "warning" }, (error as Error).message));
    } finally {
      if (pending === own) body.removeAttribute("aria-busy");
    }
  };
  const show = (name: string, module: string) => {
    delete body.dataset.shown;
    const own = data.sources?.find((of) => of.asked?.name === name && of.asked.module === module);
    if (own) told(name, module, own);
    else if (served) void fetchIt(name, module);
    else {
      const left = data.sources_omitted?.includes(name) ? " Its source had no room in this file." : "";
      const what = quoted(/[*?]/.test(name) || !module ? name : `${name}@${module}`);
      body.replaceChildren(heading(name, module),
        h("p", { class: "note missing" }, data.sources?.length
          ? `This file holds the source of ${plural(data.sources.length, "function")}, not of this one.${left} These commands show it:`
          : "This file holds no sources (kprism report --html FILE --source 20 puts those of the hottest functions into it). These commands show this function's:"),
        command(`kprism annotate ${what}`), command("kprism view"), around(name, module));
    }
    document.getElementById("source")?.scrollIntoView({ behavior: "auto", block: "start" });
  };
  return { element: body, show, button };
}
