// SPDX-License-Identifier: MIT OR Apache-2.0
// Elements without a framework. Text only ever goes in as text: names come from binaries.

type Attributes = Record<string, string | number | boolean | ((event: never) => void)>;
type Child = Node | string | null;

function apply(element: Element, attributes: Attributes, children: Child[]): void {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value as (event: Event) => void);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false) element.setAttribute(key, String(value));
  }
  element.append(...children.filter((child) => child !== null));
}

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  apply(element, attributes, children);
  return element;
}

export function s<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  apply(element, attributes, children);
  return element;
}

/** A choice of a few as radio buttons that look like one control. */
export function segmented<T extends string>(
  label: string,
  choices: [T, string][],
  chosen: T,
  onchange: (value: T) => void,
): HTMLFieldSetElement {
  const name = label.toLowerCase().replaceAll(" ", "-");
  const set = h("fieldset", { class: "segmented" }, h("legend", { class: "hidden" }, label));
  for (const [value, text] of choices) {
    const input = h("input", {
      type: "radio", name, value, id: `${name}-${value}`, checked: value === chosen, change: () => onchange(value),
    });
    set.append(input, h("label", { for: `${name}-${value}` }, text));
  }
  return set;
}
