// SPDX-License-Identifier: MIT OR Apache-2.0
// The key that all pages have: `/` goes to the search.

/** Hears `/` wherever no text is typed and nothing is chosen by letters. */
export function searchKey(search: HTMLInputElement): void {
  addEventListener("keydown", (event) => {
    if (event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key !== "/") return;
    event.preventDefault();
    search.focus();
  });
}
