// SPDX-License-Identifier: MIT OR Apache-2.0
// What the reader chose, in the page's address behind `#`: whoever opens the address sees the same.

let state = new URLSearchParams(location.hash.slice(1));
const readers: (() => void)[] = [];

export const chosen = (key: string): string => state.get(key) ?? "";

/** Two numbers that belong together, such as `12,40`; null if there are none. */
export function chosenRange(key: string): [number, number] | null {
  const [from, to, more] = chosen(key).split(",").map(Number);
  return from !== undefined && to !== undefined && more === undefined && Number.isFinite(from) && Number.isFinite(to) && from < to ? [from, to] : null;
}

/** Keeps a choice; an empty one is left out. The address changes, the history does not grow. */
export function choose(key: string, value: string): void {
  if (chosen(key) === value) return;
  if (value === "") state.delete(key);
  else state.set(key, value);
  const text = state.toString();
  history.replaceState(null, "", text ? `#${text}` : "#");
}

/** Calls back when somebody types or pastes another address. */
export function onAddress(read: () => void): void {
  readers.push(read);
}

addEventListener("hashchange", () => {
  state = new URLSearchParams(location.hash.slice(1));
  readers.forEach((read) => read());
});

/** A link to a part of the page, which leaves the choices in the address alone. */
export function sectionLinks(sections: [string, string][]): HTMLElement {
  const nav = document.createElement("nav");
  nav.className = "sections";
  nav.setAttribute("aria-label", "Sections");
  for (const [id, name] of sections) {
    const link = document.createElement("a");
    link.href = `#${id}`;
    link.textContent = name;
    link.addEventListener("click", (event) => {
      event.preventDefault();
      document.getElementById(id)?.scrollIntoView();
    });
    nav.append(link);
  }
  return nav;
}
