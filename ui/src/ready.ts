// SPDX-License-Identifier: MIT OR Apache-2.0
// When the page can be used: marks at the document's root, in ms since the page began to load.

let last = 0;

/** A step of making the page is done: its time is a measure in the browser's performance tools, from the step before. */
export function step(name: string): void {
  const now = performance.now();
  performance.measure(name, { start: last === 0 ? now : last, end: now });
  last = now;
}

/** Marks that everything is set up (`data-ready`), and soon that the first picture is on the screen (`data-painted`). */
export function markReady(): number {
  const root = document.documentElement;
  const ms = Math.round(performance.now());
  root.dataset.ready = String(ms);
  // Before the first of these frames charts are drawn, before the second the first is on the screen.
  requestAnimationFrame(() => requestAnimationFrame(() => (root.dataset.painted = String(Math.round(performance.now())))));
  return ms;
}
