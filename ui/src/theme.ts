// SPDX-License-Identifier: MIT OR Apache-2.0
// Light or dark: what the system says, until the reader says otherwise.

import { h } from "./dom.ts";

export function themeButton(): HTMLButtonElement {
  const theme = h("button", { type: "button", class: "theme", title: "Light or dark", "aria-label": "Switch between light and dark" }, "◐");
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    dispatchEvent(new Event("themechange"));
  });
  return theme;
}
