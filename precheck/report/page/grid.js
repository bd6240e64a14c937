// A table of any length: only the rows in view are elements.

const ROW = 27; // pixels; page.css says the same
const SPARE = 12; // rows above and below what is in view
const PRINTED = 40; // rows on paper

class Grid {
  /**
   * `columns`: [{name, title, help, words, width, narrow, text(i), sort(i), hot(i), plain, tail}]: `words` or else numbers; width in pixels, 0
   * for what is left, and `narrow` the same on a narrow screen, which leaves out columns without it; of a tail the end is seen where it is
   * narrow. `pick(index)` is called for a row that is chosen, `enter()` for the key; `leads` says what that does. `length` is that of the table
   * with no row filtered out, so that filtering moves nothing on the page.
   */
  constructor(host, columns, label, pick, { enter, leads, length } = {}) {
    Object.assign(this, { host, columns, pick, enter, order: [], chosen: -1, sorted: null, printing: false });
    this.body = el("tbody");
    this.heads = columns.map((column) => this.head(column));
    const widths = el("colgroup", {}, ...columns.map((column) => this.width(column)));
    this.table = el(
      "table",
      { role: "grid", "aria-label": label, "aria-colcount": columns.length },
      widths,
      el("thead", {}, el("tr", {}, ...this.heads)),
      this.body,
    );
    this.box = el(
      "div",
      { class: "grid", role: "group", tabindex: "0", onscroll: () => this.draw(), onkeydown: (event) => this.keys(event) },
      this.table,
    );
    this.box.setAttribute("aria-label", label + ": arrow keys move" + (leads ? `, Enter ${leads}` : ""));
    this.box.style.setProperty("--rows", length);
    host.replaceChildren(this.box);
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  width(column) {
    const col = el("col", { class: narrowClass(column) });
    for (const name of ["width", "narrow"]) col.style.setProperty("--" + name, column[name] ? column[name] + "px" : "auto");
    return col;
  }

  head(column) {
    const button = el("button", { type: "button", title: column.help ?? column.title, onclick: () => this.sortBy(column) }, column.title);
    return el("th", { scope: "col", class: (column.words ? "" : "right ") + narrowClass(column), "aria-sort": "none" }, button);
  }

  /** First by the greatest numbers, or words from A on; then the other way round. */
  sortBy(column, descending) {
    const turned = this.sorted?.column === column ? !this.sorted.descending : !column.words && !column.rising;
    this.sorted = { column, descending: descending ?? turned };
    this.columns.forEach((each, place) => {
      const mine = each === column;
      this.heads[place].setAttribute("aria-sort", mine ? (this.sorted.descending ? "descending" : "ascending") : "none");
      this.heads[place].firstChild.textContent = each.title + (mine ? (this.sorted.descending ? " ↓" : " ↑") : "");
    });
    this.show(this.order);
    this.box.scrollTop = 0;
  }

  /** The rows `order` (indices), in the order that was asked for. */
  show(order) {
    const { column, descending } = this.sorted ?? { column: null };
    this.order = order;
    if (column) {
      const keys = new Map(order.map((index) => [index, column.sort(index)]));
      const sign = descending ? -1 : 1;
      this.order = [...order].sort((a, b) => sign * compared(keys.get(a), keys.get(b)) || a - b);
    }
    this.table.setAttribute("aria-rowcount", this.order.length + 1);
    this.draw();
  }

  draw() {
    const total = this.order.length;
    const first = this.printing ? 0 : Math.max(0, Math.floor(this.box.scrollTop / ROW) - SPARE);
    const last = this.printing
      ? Math.min(total, PRINTED)
      : Math.min(total, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW) + SPARE);
    const rows = [];
    for (let place = first; place < last; place++) rows.push(this.row(place));
    this.body.replaceChildren(this.space(first), ...rows, this.space(this.printing ? 0 : total - last));
  }

  space(rows) {
    const cell = el("td");
    cell.style.height = rows * ROW + "px";
    return el("tr", { class: "space", "aria-hidden": "true" }, cell);
  }

  row(place) {
    const index = this.order[place];
    const cells = this.columns.map((column) => this.cell(column, index));
    const picked = () => this.pick(index);
    return el("tr", { "aria-rowindex": place + 2, "aria-selected": index === this.chosen, "data-index": index, onclick: picked }, ...cells);
  }

  cell(column, index) {
    const text = column.text(index);
    const look = column.words ? (column.plain ? "" : "code") : "right";
    const kind = [look, column.hot?.(index) ? "hot" : "", column.tail ? "tail" : "", narrowClass(column)].filter(Boolean).join(" ");
    return el(
      "td",
      { class: kind, title: column.words && text.length > 10 ? text : null },
      column.tail ? el("bdi", { dir: "ltr" }, text) : text,
    );
  }

  /** Marks a row and brings it into view. */
  mark(index) {
    this.chosen = index;
    const place = this.order.indexOf(index);
    if (place >= 0) {
      const top = place * ROW;
      const height = this.box.clientHeight - ROW - 16;
      if (top < this.box.scrollTop || top > this.box.scrollTop + height - ROW) this.box.scrollTop = top - height / 2;
    }
    this.draw();
  }

  keys(event) {
    if (event.target !== this.box) return;
    const place = this.order.indexOf(this.chosen);
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 3);
    const moves = {
      ArrowDown: place + 1,
      ArrowUp: place < 0 ? 0 : place - 1,
      PageDown: place + page,
      PageUp: place - page,
      Home: 0,
      End: Infinity,
    };
    if (event.key === "Enter" && this.enter) this.enter();
    else if (event.key in moves && this.order.length) this.pick(this.order[Math.max(0, Math.min(this.order.length - 1, moves[event.key]))]);
    else return;
    event.preventDefault();
  }
}

/** The class of a column that a narrow screen leaves out. */
function narrowClass(column) {
  return column.narrow === undefined ? "spare" : "";
}

/** Words by letters, numbers by size with NaN last of all. */
function compared(a, b) {
  if (typeof a === "string") return a < b ? -1 : a > b ? 1 : 0;
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
  return a - b || 0;
}
