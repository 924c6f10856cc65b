// SPDX-License-Identifier: MIT OR Apache-2.0
// Judges the page that it runs in: contrast of every text with what is behind it, and whether the keyboard's place is seen.

/** A colour as red, green, blue, alpha, in any notation that the browser reads. */
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const known = new Map();
function rgba(color) {
  if (!known.has(color)) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    known.set(color, [r, g, b, a / 255]);
  }
  return known.get(color);
}

const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);

/** Relative luminance, WCAG 2.2. */
function luminance(color) {
  const [r, g, b] = color.slice(0, 3).map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(a, b) {
  const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (light + 0.05) / (dark + 0.05);
}

/** What is behind an element: backgrounds from the page inwards; a bar drawn as a gradient gives a second one. */
function behind(element) {
  const chain = [];
  for (let at = element; at; at = at.parentElement) chain.unshift(at);
  const scheme = getComputedStyle(document.documentElement).colorScheme;
  const isDark = scheme.includes("dark") && (!scheme.includes("light") || matchMedia("(prefers-color-scheme: dark)").matches);
  const root = isDark ? [18, 18, 18, 1] : [255, 255, 255, 1];
  let all = [root];
  for (const at of chain) {
    const style = getComputedStyle(at);
    all = all.map((below) => over(rgba(style.backgroundColor), below));
    const stops = style.backgroundImage.match(/(rgba?|oklch|color)\([^()]*\)/g) ?? [];
    if (stops.length > 0) all = all.concat(all.flatMap((below) => stops.map((stop) => over(rgba(stop), below))));
  }
  return all;
}

/** Texts whose contrast is too low: element, text, ratio. */
function lowContrast() {
  const low = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const element = node.parentElement;
    const text = node.textContent.trim();
    if (!text || !element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) || element.closest("script, style, noscript, .hidden, option")) continue;
    const style = getComputedStyle(element);
    const isSvg = element instanceof SVGElement;
    const ink = rgba(isSvg ? style.fill : style.color);
    // A label of a chart lies on the shape before it.
    const shape = isSvg && element.classList.contains("label") ? (element.previousElementSibling ?? element.parentElement.querySelector("rect")) : null;
    const papers = shape && !shape.matches("text") ? [rgba(getComputedStyle(shape.matches("g") ? shape.querySelector("rect") : shape).fill)] : behind(isSvg ? element.closest("svg").parentElement : element);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    seen++;
    for (const paper of papers) {
      const ratio = contrast(over(ink, paper), paper);
      if (ratio < (large ? 3 : 4.5)) low.push([element.tagName, element.getAttribute("class"), text.slice(0, 40), ratio.toFixed(2)]);
    }
  }
  return { seen, low };
}

/** Elements that the keyboard reaches and that look the same with its focus as without. */
function unseenFocus() {
  const reached = [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")].filter((e) => e.checkVisibility() && !e.disabled && e.tabIndex >= 0);
  const look = (e) => {
    const parts = [e, ...e.querySelectorAll(":scope > circle, :scope > rect"), e.matches(".segmented input") ? e.nextElementSibling : null].filter(Boolean);
    return parts.map((part) => { const s = getComputedStyle(part); return [s.outlineStyle, s.outlineWidth, s.stroke, s.strokeWidth, s.boxShadow].join(); }).join("|");
  };
  const unseen = [];
  for (const element of reached) {
    // The panel beside a chart is made anew for the frame that has the focus.
    if (!element.isConnected) continue;
    document.activeElement?.blur();
    const before = look(element);
    element.focus({ preventScroll: true });
    if (document.activeElement !== element || look(element) === before) unseen.push([element.tagName, element.getAttribute("class"), (element.textContent ?? "").slice(0, 30)]);
  }
  return { reached: reached.length, unseen };
}

/** Pictures without a name, or without a table of their numbers near them. */
function pictures() {
  const without = [];
  const all = [...document.querySelectorAll("canvas, svg")].filter((e) => e.checkVisibility() && !e.closest(".legend, .patterns, [aria-hidden=true]"));
  for (const picture of all) {
    const named = picture.closest("[aria-label]");
    let at = picture.parentElement;
    while (at && at !== document.body && !at.querySelector("details, table")) at = at.parentElement;
    if (!named || !at || at === document.body) without.push([picture.tagName, picture.getAttribute("class"), !!named]);
  }
  return { seen: all.length, without };
}
