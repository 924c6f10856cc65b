// SPDX-License-Identifier: MIT OR Apache-2.0
// Trees of calling contexts that are too large, or too many, for the page: fetched from the server when somebody chooses them.

import type { Data, FunctionColumns, Names, SyscallRow, TreeData } from "./data.ts";
import { h } from "./dom.ts";
import { plural } from "./format.ts";
import { ask, served } from "./served.ts";

interface Fetched extends Names {
  comms: string[];
  tree: TreeData;
  functions: FunctionColumns;
  syscalls: SyscallRow[];
}

/** Renumbers what was fetched by the page's own numbers; names that the page does not have are added to it. */
function adopt(data: Data, fetched: Fetched): TreeData {
  const key = (names: Names, func: number) => `${names.funcs.kernel[func]}\0${names.modules[names.funcs.module[func]]}\0${names.funcs.name[func]}`;
  const known = new Map(data.funcs.name.map((_, func) => [key(data, func), func]));
  const number = (list: string[], text: string) => (list.indexOf(text) + 1 || list.push(text)) - 1;
  const funcs = fetched.funcs.name.map((name, func) => {
    const found = known.get(key(fetched, func));
    if (found !== undefined) return found;
    data.funcs.name.push(name);
    data.funcs.module.push(number(data.modules, fetched.modules[fetched.funcs.module[func]]));
    data.funcs.kernel.push(fetched.funcs.kernel[func]);
    return data.funcs.name.length - 1;
  });
  const comms = fetched.comms.map((comm) => number(data.comms, comm));
  const { tree, functions } = fetched;
  tree.ref = tree.ref.map((ref) => (ref >= 0 ? funcs[ref] : ref <= -3 ? -3 - comms[-3 - ref] : ref));
  functions.func = functions.func.map((func) => funcs[func]);
  if (tree.scope === "syscall") tree.id = funcs[tree.id];
  if (tree.scope === "all") data.functions = functions;
  if (tree.scope === "task") {
    const old = data.functions_by_task;
    const task = old.task ?? [];
    const keep = task.map((of, row) => (of === tree.id ? -1 : row)).filter((row) => row >= 0);
    const column = (name: "func" | "calls" | "self_insns" | "total_insns" | "self_ns" | "total_ns") => keep.map((row) => old[name][row]).concat(functions[name]);
    data.functions_by_task = {
      task: keep.map((row) => task[row]).concat(functions.task ?? []),
      func: column("func"), calls: column("calls"), self_insns: column("self_insns"), total_insns: column("total_insns"),
      self_ns: column("self_ns"), total_ns: column("total_ns"), omitted: 0,
    };
    data.syscalls = data.syscalls.filter((row) => row.task !== tree.id)
      .concat(fetched.syscalls.map((row) => ({ ...row, func: funcs[row.func] })));
  }
  return tree;
}

function words(data: Data, tree: Pick<TreeData, "scope" | "id">): Record<string, string | number> {
  switch (tree.scope) {
    case "all": return { scope: "all" };
    case "task": return { scope: "task", task: tree.id };
    case "syscall": return { scope: "syscall", name: data.syscalls.find((row) => row.func === tree.id)?.name ?? "" };
  }
}

async function load(data: Data, wanted: Pick<TreeData, "scope" | "id">): Promise<number> {
  const tree = adopt(data, await ask<Fetched>("tree", words(data, wanted)));
  const at = data.trees.findIndex((known) => known.scope === tree.scope && known.id === tree.id);
  if (at < 0) return data.trees.push(tree) - 1;
  data.trees[at] = tree;
  return at;
}

export interface FetchedTrees {
  /** Says that a tree is read, or why it could not be. */
  told: HTMLElement;
  /** A button that reads the folded contexts of a tree; null if there are none, or no server. */
  whole: (index: number) => HTMLElement | null;
  /** Reads a tree that the page does not have. */
  of: (scope: TreeData["scope"], id: number) => void;
}

/** Trees that can be fetched. `changed` shows the tree of a number, which is a new one. */
export function fetchedTrees(data: Data, picker: HTMLSelectElement, changed: (index: number) => void): FetchedTrees {
  const told = h("output", { class: "fetched", id: "fetched" });
  const get = async (wanted: Pick<TreeData, "scope" | "id">) => {
    told.textContent = "Reading the run …";
    picker.disabled = true;
    try {
      const index = await load(data, wanted);
      told.textContent = "";
      changed(index);
      const option = picker.querySelector<HTMLOptionElement>(`option[value="${wanted.scope}:${wanted.id}"]`);
      if (option) option.value = String(index);
      picker.value = String(index);
    } catch (error) {
      told.textContent = (error as Error).message;
    } finally {
      picker.disabled = false;
    }
  };
  if (served) {
    const shown = (scope: TreeData["scope"], id: number) => data.trees.some((tree) => tree.scope === scope && tree.id === id);
    const tasks = data.tasks.flatMap((task, id) => (shown("task", id) ? [] : [h("option", { value: `task:${id}` }, `${task.comm} [${task.pid}]`)]));
    const calls = data.syscalls.filter((row) => row.task < 0 && !shown("syscall", row.func)).map((row) => h("option", { value: `syscall:${row.func}` }, row.name));
    if (tasks.length > 0) picker.append(h("optgroup", { label: "Smaller tasks, read from the run" }, ...tasks));
    if (calls.length > 0) picker.append(h("optgroup", { label: "Shorter system calls, read from the run" }, ...calls));
    picker.addEventListener("change", (event) => {
      const [scope, id] = picker.value.split(":");
      if (id === undefined) return;
      event.stopImmediatePropagation();
      void get({ scope: scope as TreeData["scope"], id: Number(id) });
    }, { capture: true });
  }
  const whole = (index: number) => {
    const tree = data.trees[index];
    if (!served || tree.folded.contexts === 0) return null;
    return h("button", { type: "button", class: "more fetch-whole", click: () => void get(tree) }, `Read ${plural(tree.folded.contexts, "folded context")} from the run`);
  };
  return { told, whole, of: (scope, id) => void (served && get({ scope, id })) };
}
