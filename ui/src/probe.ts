// SPDX-License-Identifier: MIT OR Apache-2.0
// The page of probes: what was hit and lost, hits to filter and sort, plots of their values, counts by keys.

import "./style.css";
import "./plots.css";
import { h, segmented } from "./dom.ts";
import { exact, plural } from "./format.ts";
import { chosen, choose, onAddress, sectionLinks } from "./fragment.ts";
import { account } from "./losses.ts";
import { plain, ready, section } from "./plots.ts";
import { searchKey } from "./search-key.ts";
import { collected, data, fieldNamed, fields, hits, place, shown, time, whose, type ColumnData, type Field, type TotalRow } from "./probe-data.ts";
import { histograms, rates, scatters, slotFigure, type Group } from "./probe-plots.ts";
import { SortedTable, type Column } from "./tables.ts";
import { themeButton } from "./theme.ts";

type Chart = "histogram" | "scatter" | "time";

/** Plots side by side, at most. */
const MULTIPLES = 12;
const { rows } = data;
const numeric = collected.filter((field) => field.numeric);

/** Ranges that hits must be in, as they stand in the address: `FIELD=FROM..TO`, one a line. */
function ranges(): { field: Field; from: number; to: number }[] {
  return chosen("range").split("\n").flatMap((line) => {
    const parts = /^(.*)=(-?[\d.e+-]+)\.\.(-?[\d.e+-]+)$/s.exec(line);
    const field = parts && fieldNamed(parts[1]!);
    return field ? [{ field, from: Number(parts[2]), to: Number(parts[3]) }] : [];
  });
}

const setRanges = (all: ReturnType<typeof ranges>) => choose("range", all.map(({ field, from, to }) => `${field.id}=${from}..${to}`).join("\n"));

const line = (hit: number): string => fields.filter((field) => !field.member).map((field) => field.text(hit)).join(" ").toLowerCase();

/** The hits that the reader's choices leave. */
function wanted(): number[] {
  const query = chosen("q").trim().toLowerCase();
  const probe = chosen("probe") === "" ? -1 : Number(chosen("probe"));
  const within = ranges();
  return hits.filter((hit) => (probe < 0 || rows.probe[hit] === probe)
    && within.every(({ field, from, to }) => field.number(hit) >= from && field.number(hit) <= to)
    && (query === "" || line(hit).includes(query)));
}

/** Hits by key, those with most hits first. */
function groupsOf(all: number[], key: Field | undefined): { groups: Group[]; rest: Group[] } {
  if (!key) return { groups: [{ name: "", hits: all }], rest: [] };
  const by = new Map<string, number[]>();
  for (const hit of all) {
    const group = by.get(key.text(hit));
    if (group) group.push(hit);
    else by.set(key.text(hit), [hit]);
  }
  const sorted = [...by].map(([name, own]) => ({ name: `${key.name} = ${name || "–"}`, hits: own })).sort((a, b) => b.hits.length - a.hits.length);
  return { groups: sorted.slice(0, MULTIPLES), rest: sorted.slice(MULTIPLES) };
}

function select(label: string, key: string, options: [string, string][], changed: () => void): HTMLSelectElement {
  const element = h("select", { "aria-label": label, id: `choose-${key}` }, ...options.map(([value, name]) => h("option", { value }, name)));
  element.addEventListener("change", () => {
    choose(key, element.value === options[0]![0] ? "" : element.value);
    changed();
  });
  return element;
}

const setSelect = (element: HTMLSelectElement, value: string) => {
  element.value = [...element.options].some((option) => option.value === value) ? value : (element.options[0]?.value ?? "");
};

function probes(): HTMLElement {
  const one = (probe: (typeof data.probes)[number]) => h("li", { class: "about-probe" }, h("strong", {}, h("code", {}, probe.found)), ` in ${probe.file}, by ${probe.hook}`,
    probe.condition ? h("div", {}, "if ", h("code", {}, probe.condition)) : "", ...probe.counted.map((text, i) => h("div", i > 0 ? { class: "bad" } : {}, text.trim())));
  return section("probes", "Probes", h("ul", { class: "allocated" }, ...data.probes.map(one)), ...data.sums.map((text) => h("p", { class: "note" }, text)),
    data.last === null ? null : h("p", { class: "note" }, `Of all records the last ${exact(data.last)} are kept.`),
    ...data.variables.map(([name, value]) => h("p", { class: "note" }, `$${name} = ${value}`)));
}

/** Records: what is lost and left out stands above them. */
function bounds(): HTMLElement {
  const lost = data.account.filter((entry) => entry.fate !== "seen" && entry.fate !== "kept" && entry.count !== 0);
  const items = rows.total > 0 || data.probes.some((probe) => probe.records) ? [h("li", {}, `This page has ${shown}.`)] : [];
  if (rows.cut > 0) items.push(h("li", {}, `${plural(rows.cut, "long text is", "long texts are")} cut after 200 characters.`));
  if (rows.without_room > 0) items.push(h("li", { class: "bad" }, `${plural(rows.without_room, "text")} found no room in this page.`));
  if (rows.without_column > 0) items.push(h("li", { class: "bad" }, `${plural(rows.without_column, "member")} of structures found no room for a column of their own.`));
  if (rows.every > 1) items.push(h("li", {}, "Plots are of the records in this page; the table of values is of all records. kprism export -o FILE.parquet has all of them."));
  for (const entry of lost) items.push(h("li", { class: "bad" }, `${entry.fate.replace("_", " ")}: ${entry.count === null ? "not known how many" : exact(entry.count)} ${entry.unit}`));
  if (lost.length === 0) items.push(h("li", { class: "good" }, "Nothing was lost."));
  return h("ul", { class: "beside" }, ...items);
}

/** Every number over all records. */
function values(show: (field: Field) => void): HTMLElement {
  const mean = (c: ColumnData) => (c.count > 0 ? c.sum / c.count : -Infinity);
  const number = (n: number | null, c: ColumnData) => (c.count === 0 || n === null ? "–" : c.address ? `0x${BigInt(Math.round(n)).toString(16)}` : plain(n));
  const table = new SortedTable<ColumnData>({
    caption: "values",
    columns: [
      { head: "value", key: (c) => c.name, show: (c) => c.name },
      { head: "type", key: (c) => c.type, show: (c) => c.type },
      { head: "numbers", key: (c) => c.count, show: (c) => exact(c.count) },
      { head: "least", key: (c) => c.least ?? -Infinity, show: (c) => number(c.least, c) },
      { head: "mean", key: mean, show: (c) => (c.address ? "–" : number(c.count > 0 ? mean(c) : null, c)) },
      { head: "most", key: (c) => c.most ?? -Infinity, show: (c) => number(c.most, c) },
      { head: "not read", key: (c) => c.failed.reduce((sum, [, n]) => sum + n, 0), show: (c) => c.failed.map(([why, n]) => `${exact(n)} ${why}`).join(", "), tone: (c) => (c.failed.length > 0 ? "bad" : "") },
    ],
    sort: 0,
    choose: (c) => show(collected[rows.columns.indexOf(c)]!),
    chooseLabel: "Show its histogram",
    empty: "No values were collected.",
  });
  table.setRows(rows.columns);
  return table.element;
}

function plotsAndHits(): HTMLElement[] {
  const search = h("input", { type: "search", placeholder: "Search hits (/)", "aria-label": "Search hits" });
  const found = h("span", { class: "found", role: "status" });
  const chips = h("div", { class: "chips" });
  const plots = h("div", { class: "multiples" });
  const rest = h("p", { class: "note" });
  const kind = (): Chart => {
    const asked = chosen("chart");
    return asked === "scatter" || asked === "time" || asked === "histogram" ? asked : numeric.length > 0 ? "histogram" : "time";
  };
  const charts = segmented<Chart>("Plot", [["histogram", "Histogram"], ["scatter", "Scatter"], ["time", "Over time"]], kind(), (chart) => {
    choose("chart", chart);
    draw();
  });
  const scales = segmented<"linear" | "log">("Scale", [["linear", "Linear"], ["log", "Logarithmic"]], "linear", (scale) => {
    choose("scale", scale === "linear" ? "" : scale);
    draw();
  });
  const named = (all: Field[]): [string, string][] => all.map((field) => [field.id, field.name]);
  const none: [string, string] = ["", "no number was collected"];
  const x = select("Value", "x", numeric.length > 0 ? named(numeric) : [none], () => draw());
  const y = select("Second value", "y", numeric.length > 0 ? named([...numeric.slice(1), numeric[0]!]) : [none], () => draw());
  const over = select("Over time", "over", [["", "hits"], ...named(numeric)], () => draw());
  const key = select("One plot for each", "key", [["", "one plot"], ...named([place, ...whose, ...collected.filter((field) => !field.member)]).map(([id, name]): [string, string] => [id, `for each ${name}`])], () => draw());
  const probe = select("Probe", "probe", [["", "all probes"], ...data.probes.map((p, i): [string, string] => [String(i), p.place])], () => draw());
  const columns: Field[] = [time, ...whose.slice(0, 1), whose[2]!, place, ...collected.filter((field) => !field.member)];
  const table = new SortedTable<number>({
    caption: "hits",
    columns: columns.map((field): Column<number> => ({
      head: field.name,
      key: (hit) => {
        if (!field.numeric) return field.text(hit);
        const number = field.number(hit);
        return Number.isNaN(number) ? -Infinity : number;
      },
      show: (hit) => field.text(hit),
    })),
    sort: 0,
    changed: (view) => choose("sort", view === "-0" ? "" : view),
    empty: "No record is in this page.",
  });
  const onRange = (field: Field, from: number, to: number) => {
    setRanges([...ranges().filter((range) => range.field !== field), { field, from, to }]);
    draw();
  };

  function draw(): void {
    if (search.value.trim() !== chosen("q").trim()) search.value = chosen("q");
    for (const [element, name] of [[x, "x"], [y, "y"], [over, "over"], [key, "key"], [probe, "probe"]] as const) setSelect(element, chosen(name));
    const check = (set: HTMLElement, value: string) => {
      const input = set.querySelector<HTMLInputElement>(`input[value="${value}"]`);
      if (input) input.checked = true;
    };
    const log = chosen("scale") === "log";
    check(charts, kind());
    check(scales, log ? "log" : "linear");
    x.hidden = kind() === "time";
    y.hidden = kind() !== "scatter";
    over.hidden = kind() !== "time";
    const all = wanted();
    const { groups, rest: others } = groupsOf(all, fieldNamed(key.value));
    const [first, second, third] = [fieldNamed(x.value), fieldNamed(y.value), fieldNamed(over.value)];
    const made = kind() === "time" ? (third ? scatters(time, third, groups, log) : rates(groups, onRange))
      : !first ? [h("p", { class: "note" }, "No number was collected: add --collect.")]
        : kind() === "scatter" && second ? scatters(first, second, groups, log) : histograms(first, groups, log, onRange);
    plots.classList.toggle("one", groups.length === 1);
    plots.replaceChildren(...made);
    rest.textContent = others.length > 0 ? `and ${plural(others.length, "key")} more, with ${plural(others.reduce((sum, group) => sum + group.hits.length, 0), "hit")}, which are not drawn.` : "";
    chips.replaceChildren(...ranges().map(({ field, from, to }) => h("button", { type: "button", title: "Take this filter away", click: () => {
      setRanges(ranges().filter((range) => range.field !== field));
      draw();
    } }, `${field.name} from ${plain(from)} to ${plain(to)} ✕`)));
    found.textContent = `${exact(all.length)} of ${plural(hits.length, "hit")}`;
    table.setView(chosen("sort") || "-0");
    table.setRows(all);
  }

  search.addEventListener("input", () => {
    choose("q", search.value.trim());
    draw();
  });
  searchKey(search);
  onAddress(draw);
  draw();
  const filters = h("div", { class: "controls", id: "filters" }, probe, h("div", { class: "search" }, search, found));
  const showValue = (field: Field) => {
    if (!field.numeric) return;
    choose("chart", "histogram");
    choose("x", field.id);
    draw();
    document.getElementById("plots")?.scrollIntoView();
  };
  return [
    section("plots", "Plots", filters, chips, h("div", { class: "controls" }, charts, x, y, over, key, scales), plots, rest, h("p", { class: "note" }, "A click on a bar keeps the hits in it. Plots side by side have the same axes.")),
    section("hits", "Hits", bounds(), table.element),
    section("values", "Values", h("p", { class: "note" }, `Of all ${exact(rows.total)} records.`), values(showValue)),
  ];
}

const keyText = (value: unknown): string => (Array.isArray(value) ? value.map(keyText).join(" < ") : typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value));

/** Means have fractions. Beyond 2^53 this page's numbers are not exact, and say so. */
function aggregated(value: number | string | null): string {
  if (value === null) return "–";
  if (typeof value === "string") return value;
  if (!Number.isInteger(value)) return plain(value);
  return Number.isSafeInteger(value) ? exact(value) : `≈ ${exact(value)}`;
}

/** Counts by keys, and histograms, that were made in the kernel. */
function totals(): HTMLElement[] {
  return data.totals.map(([{ probe, rows: all }, number], n) => {
    const keys = [...new Set(all.flatMap((row) => Object.keys(row.key)))];
    const aggregates = all[0]?.aggregates ?? [];
    const failed = aggregates.map((_, at) => all.reduce((sum, row) => sum + (row.aggregates?.[at]?.failed ?? 0), 0));
    const sum = all.reduce((sum, row) => sum + row.count, 0);
    const name = (row: TotalRow) => keys.map((key) => `${key} = ${keyText(row.key[key])}`).join(", ");
    const figures = (row: TotalRow, title: string) => row.histograms.map((histogram) => {
      const mean = histogram.count > 0 && histogram.sum !== null ? `, sum ${plain(histogram.sum)}, mean ${plain(histogram.sum / histogram.count)}` : "";
      const failed = histogram.failed > 0 ? `, ${exact(histogram.failed)} could not be computed` : "";
      return slotFigure(title, `${plural(histogram.count, "value")}${mean}${failed}`, histogram.of, histogram.slots);
    });
    const table = new SortedTable<TotalRow>({
      caption: `counts of ${probe}`,
      columns: [
        { head: "count", key: (row) => row.count, show: (row) => exact(row.count), bar: (row) => row.count / Math.max(1, all[0]?.count ?? 1) },
        ...keys.map((key): Column<TotalRow> => ({ head: key, key: (row) => (typeof row.key[key] === "number" ? (row.key[key] as number) : keyText(row.key[key])), show: (row) => keyText(row.key[key]) })),
        ...aggregates.map((aggregate, at): Column<TotalRow> => ({
          head: `${aggregate.function}(${aggregate.of})`,
          key: (row) => Number(row.aggregates?.[at]?.value ?? NaN),
          show: (row) => aggregated(row.aggregates?.[at]?.value ?? null),
        })),
      ],
      sort: 0,
      filter: name,
      ...(all.some((row) => row.histograms.length > 0) && keys.length > 0 ? { detail: (row: TotalRow) => h("div", { class: "multiples" }, ...figures(row, "")) } : {}),
      chooseLabel: "Show its histograms",
      empty: "Nothing was counted.",
    });
    table.setRows(all);
    const plots = all.slice(0, MULTIPLES).flatMap((row) => figures(row, name(row)));
    const left = number > all.length ? h("p", { class: "note" }, `and ${plural(number - all.length, "combination")} of keys more; kprism report probe --limit 0 shows all.`) : null;
    const without = plots.length > 0 && all.length > MULTIPLES ? h("p", { class: "note" }, `Histograms of the ${MULTIPLES} most frequent keys; those of a row open below it.`) : null;
    const without_value = aggregates.flatMap(({ function: name, of }, at) => (failed[at]! > 0 ? [`${plural(failed[at]!, "value")} of ${name}(${of})`] : []));
    const lost = without_value.length > 0 ? h("p", { class: "note bad" }, `Could not be computed: ${without_value.join(", ")}.`) : null;
    return section(`counts-${n}`, `Counts of ${probe}`, h("p", { class: "note" }, `${exact(sum)} counted in ${plural(all.length, "row")}.`), lost,
      plots.length > 0 ? h("div", { class: "multiples" }, ...plots) : null, without, table.element, left);
  });
}

const counts = totals();
const records = data.probes.some((probe) => probe.records);
const parts = [probes(), ...counts, ...(records ? plotsAndHits() : [section("hits", "Hits", h("p", { class: "note" }, "These probes count only; no record of a hit was asked for."), bounds())]), section("account", "Account", account(data.account))];
document.body.append(
  h("header", {}, h("div", { class: "title" }, h("span", { class: "brand" }, "probes"), h("h1", {}, data.title), themeButton()),
    data.known ? "" : h("p", { class: "warning" }, "The recorder did not end properly: nothing is known of what was lost."),
    h("dl", { class: "facts-line" }, ...data.account.filter((entry) => entry.fate === "seen" || entry.fate === "kept").map((entry) =>
      h("div", { class: "fact" }, h("dt", {}, entry.unit), h("dd", { id: `all-${entry.unit.replaceAll(" ", "-")}` }, entry.count === null ? "not known" : exact(entry.count)))))),
  sectionLinks(parts.map((part): [string, string] => [part.id, part.querySelector("h2")!.textContent!])),
  h("main", {}, ...parts));
ready();
