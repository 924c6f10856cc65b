// SPDX-License-Identifier: MIT OR Apache-2.0
// Asks the server of `kprism view` for what is not in the page. A page in a file has no server and asks for nothing.

/** Facts that the server puts into the page. */
export interface Facts {
  /** Identity of the recording that the page was made from. */
  id: string;
  /** The run's folder. */
  run: string;
  /** Number of runs that the server shows. */
  runs: number;
}

function readFacts(): Facts | null {
  const text = document.getElementById("kprism-view")?.textContent;
  return text ? (JSON.parse(text) as Facts) : null;
}

/** Null in a file. */
export const served = readFacts();

/** Asks for data of this page's recording. The error is the server's text, or says that there is no server any more. */
export async function ask<T>(what: "source" | "lines" | "tree", words: Record<string, string | number>, signal?: AbortSignal): Promise<T> {
  if (!served) throw new Error("this page is a file: it has no server to ask");
  const query = new URLSearchParams({ id: served.id });
  for (const [word, value] of Object.entries(words)) query.set(word, String(value));
  let reply: Response;
  try {
    reply = await fetch(`${what}?${query}`, signal ? { signal } : {});
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error("kprism view does not answer: it has ended. Start it again and open its new address.");
  }
  const value = (await reply.json()) as T & { error?: string };
  if (!reply.ok) throw new Error(value.error ?? `status ${reply.status}`);
  return value;
}

/** A word as a shell reads it. */
export function quoted(word: string): string {
  return /^[A-Za-z0-9_\-./=:,+@%]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** The option that names the run to a command, if it is known. */
export const input = served ? ` -i ${quoted(served.run)}` : "";
