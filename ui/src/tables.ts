// SPDX-License-Identifier: MIT OR Apache-2.0
// Sortable, filterable tables. Rows are made when they are shown, a page at a time.

import { h } from "./dom.ts";
import { exact } from "./format.ts";

export interface Column<Row> {
  head: string;
  /** Explains the column. */
  title?: string;
  /** For sorting; numbers go from large to small first, names from a to z. */
  key: (row: Row) => number | string;
  show: (row: Row) => string;
  /** Draws a bar of this part (0 to 1) behind the cell. */
  bar?: (row: Row) => number;
  /** The cell's content, if more than the text. */
  node?: (row: Row) => Node;
  /** What to sort by, if not the key. */
  order?: (row: Row) => number;
  /** A class for the cell. */
  tone?: (row: Row) => string;
  /** Said of the cell where the pointer rests on it; nothing if empty. */
  tip?: (row: Row) => string;
}

export interface TableOptions<Row> {
  caption: string;
  columns: Column<Row>[];
  sort: number;
  /** Text to filter by; without it there is no filter box. */
  filter?: (row: Row) => string;
  /** What choosing a row does. */
  choose?: (row: Row) => void;
  /** What choosing a row shows below it. */
  detail?: (row: Row) => Node;
  /** Says what choosing does, for people who cannot see it. */
  chooseLabel?: string;
  /** Hears of another order: the column's number, with `-` before it if turned round. */
  changed?: (view: string) => void;
  empty: string;
}

const PAGE = 25;

export class SortedTable<Row> {
  readonly element: HTMLElement;
  private readonly body = h("tbody");
  private readonly heads: HTMLTableCellElement[];
  private readonly foot = h("div", { class: "table-foot" });
  private rows: Row[] = [];
  private chosen: Row | null = null;
  private sort: number;
  private down = true;
  private query = "";
  private shown = PAGE;

  constructor(private readonly options: TableOptions<Row>) {
    this.sort = options.sort;
    this.heads = options.columns.map((column, i) => {
      const button = h("button", { type: "button", title: column.title ?? "", click: () => this.sortBy(i) }, column.head);
      return h("th", { scope: "col" }, button);
    });
    const table = h("table", { class: "rows" }, h("caption", { class: "hidden" }, options.caption), h("thead", {}, h("tr", {}, ...this.heads)), this.body);
    const filter = options.filter
      ? h("input", { type: "search", class: "filter", placeholder: "Filter…", "aria-label": `Filter ${options.caption}`, input: (event: Event) => this.setQuery((event.target as HTMLInputElement).value) })
      : null;
    this.element = h("div", { class: "sorted-table" }, filter, h("div", { class: "scroll" }, table), this.foot);
  }

  setRows(rows: Row[], chosen: Row | null = null): void {
    this.rows = rows;
    this.chosen = chosen;
    this.shown = PAGE;
    this.draw();
  }

  /** Sorts as `changed` was told; anything else is ignored. The next rows are drawn so. */
  setView(view: string): void {
    const column = Number(view.replace("-", ""));
    if (!Number.isInteger(column) || !this.options.columns[column]) return;
    this.sort = column;
    this.down = !view.startsWith("-");
  }

  private setQuery(query: string): void {
    this.query = query.trim().toLowerCase();
    this.shown = PAGE;
    this.draw();
  }

  private sortBy(column: number): void {
    this.down = this.sort === column ? !this.down : true;
    this.sort = column;
    this.options.changed?.(`${this.down ? "" : "-"}${column}`);
    this.draw();
  }

  private draw(): void {
    const { columns, filter } = this.options;
    const key = columns[this.sort].order ?? columns[this.sort].key;
    const order = (a: Row, b: Row) => {
      const [x, y] = [key(a), key(b)];
      return typeof x === "number" ? (y as number) - x : x < y ? -1 : x > y ? 1 : 0;
    };
    const rows = this.rows.filter((row) => !this.query || !filter || filter(row).toLowerCase().includes(this.query)).sort(order);
    if (!this.down) rows.reverse();
    this.heads.forEach((head, i) => {
      const numbers = this.rows.length > 0 && typeof columns[i].key(this.rows[0]) === "number";
      head.classList.toggle("text", !numbers);
      head.setAttribute("aria-sort", i !== this.sort ? "none" : this.down === numbers ? "descending" : "ascending");
    });
    this.body.replaceChildren(...rows.slice(0, this.shown).map((row) => this.line(row)));
    const rest = rows.length - this.shown;
    this.foot.replaceChildren();
    if (rows.length === 0) this.foot.append(h("p", { class: "note" }, this.rows.length ? "Nothing matches." : this.options.empty));
    if (rest > 0) {
      const more = () => {
        this.shown += PAGE * 4;
        this.draw();
      };
      this.foot.append(h("button", { type: "button", class: "more", click: more }, `Show more (${exact(rest)} left)`));
    }
  }

  private line(row: Row): HTMLTableRowElement {
    const { choose, detail } = this.options;
    const active = choose !== undefined || detail !== undefined;
    const cells = this.options.columns.map((column, i) => {
      const text = column.show(row);
      const name = typeof column.key(row) !== "number";
      const content = column.node ? column.node(row) : active && i === this.options.columns.findIndex((c) => typeof c.key(row) !== "number")
        ? h("button", { type: "button", class: "choose", title: this.options.chooseLabel ?? "", ...(detail ? { "aria-expanded": "false" } : {}) }, text)
        : text;
      const cell = h("td", { class: name ? "text" : "" }, content);
      if (name && text) cell.title = text;
      const tip = column.tip?.(row);
      if (tip) cell.title = tip;
      const tone = column.tone?.(row);
      if (tone) cell.classList.add(tone);
      if (column.bar) {
        cell.classList.add("barred");
        cell.style.setProperty("--part", `${column.bar(row) * 100}%`);
      }
      return cell;
    });
    const line = h("tr", { "aria-selected": row === this.chosen ? "true" : false }, ...cells);
    if (choose) {
      line.classList.add("can-choose");
      line.addEventListener("click", () => {
        this.chosen = row;
        for (const other of this.body.children) other.removeAttribute("aria-selected");
        line.setAttribute("aria-selected", "true");
        choose(row);
      });
    }
    if (detail) {
      line.classList.add("can-choose");
      line.addEventListener("click", () => this.toggle(line, () => detail(row)));
    }
    return line;
  }

  /** Opens what belongs to a row below it, or closes it. */
  private toggle(line: HTMLTableRowElement, make: () => Node): void {
    const below = line.nextElementSibling;
    const open = below?.classList.contains("detail") ?? false;
    if (open) below?.remove();
    else line.after(h("tr", { class: "detail" }, h("td", { colspan: this.options.columns.length }, make())));
    line.querySelector(".choose")?.setAttribute("aria-expanded", String(!open));
  }
}
