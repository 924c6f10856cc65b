// SPDX-License-Identifier: MIT OR Apache-2.0
// Coverage as the page is given it: cover/page.rs writes it. Files' contents are inflated when they are looked at.

export interface Data {
  title: string;
  generator: string;
  objects: number;
  root: string | null;
  runs: string[];
  files: [path: string, numbers: number[], hits_by_run: number[]][];
  functions: string;
  contents: string[];
}

/** Lines, functions, branches (taken), calls: all, and those that were hit. */
export interface Numbers {
  lines: number;
  linesHit: number;
  functions: number;
  functionsHit: number;
  branches: number;
  branchesTaken: number;
  calls: number;
  callsHit: number;
}

export interface File extends Numbers {
  index: number;
  path: string;
  byRun: number[];
}

export interface Fn {
  name: string;
  file: File;
  line: number;
  called: number;
  blocks: number;
  blocksHit: number;
}

export type Kind = "jump" | "fallthrough" | "throw" | "call";

export interface Branch {
  kind: Kind;
  taken: number;
  executed: number;
}

export interface Line {
  count: number;
  /** A part of it was not executed. */
  partly: boolean;
  runs: number[];
  branches: Branch[];
  /** What was seen of conditions (MC/DC), in words. */
  conditions: string[];
}

export interface Content {
  text: string[] | null;
  lines: Map<number, Line>;
  last: number;
}

export const data = JSON.parse(document.getElementById("kprism-data")!.textContent!) as Data;

export const files: File[] = data.files.map(([path, n, byRun], index) => ({
  index, path, byRun,
  lines: n[0], linesHit: n[1], functions: n[2], functionsHit: n[3],
  branches: n[4], branchesTaken: n[5], calls: n[6], callsHit: n[7],
}));

export const byPath = new Map(files.map((file) => [file.path, file]));

async function inflate<T>(packed: string): Promise<T> {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return (await new Response(stream).json()) as T;
}

let known: Promise<Fn[]> | null = null;

/** All functions of all files. */
export function functions(): Promise<Fn[]> {
  known ??= inflate<[string, number, number, number, number][][]>(data.functions).then((all) =>
    all.flatMap((own, index) =>
      own.map(([name, line, called, blocks, blocksHit]) => ({ name, file: files[index], line, called, blocks, blocksHit }))));
  return known;
}

const KINDS: Kind[] = ["jump", "fallthrough", "throw", "call"];

export async function contentOf(file: File): Promise<Content> {
  interface Packed { text: string | null; lines: (number | number[])[]; branches: number[]; conditions: [number, string[]][] }
  const packed = await inflate<Packed>(data.contents[file.index]);
  const lines = new Map<number, Line>();
  let last = 0;
  for (let i = 0; i < packed.lines.length; i += 4) {
    const [number, count, partly, runs] = packed.lines.slice(i, i + 4) as [number, number, number, number | number[]];
    lines.set(number, { count, partly: partly === 1, runs: Array.isArray(runs) ? runs : [], branches: [], conditions: [] });
    last = number;
  }
  for (let i = 0; i < packed.branches.length; i += 4) {
    const [number, kind, taken, executed] = packed.branches.slice(i, i + 4);
    lines.get(number)?.branches.push({ kind: KINDS[kind], taken, executed });
  }
  for (const [number, told] of packed.conditions) lines.get(number)?.conditions.push(...told);
  const text = packed.text?.replace(/\n$/, "").split("\n") ?? null;
  return { text, lines, last };
}

const SUMS = ["lines", "linesHit", "functions", "functionsHit", "branches", "branchesTaken", "calls", "callsHit"] as const;

/** Numbers of several files; lines hit are those of one run, if one is asked for. */
export function sum(all: Iterable<File>, run: number): Numbers {
  const total = { lines: 0, linesHit: 0, functions: 0, functionsHit: 0, branches: 0, branchesTaken: 0, calls: 0, callsHit: 0 };
  for (const file of all) {
    for (const key of SUMS) total[key] += key === "linesHit" ? hitLines(file, run) : file[key];
  }
  return total;
}

export const hitLines = (file: File, run: number): number => (run < 0 ? file.linesHit : file.byRun[run]);
