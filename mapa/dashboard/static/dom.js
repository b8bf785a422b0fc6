// Elements and texts. Whatever comes from records is set as text, never as markup.

export function make(tag, fields = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(fields)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") element.className = value;
    else if (key.startsWith("on")) { element.addEventListener(key.slice(2), value); element.kept = true; }
    else if (value === true) element.setAttribute(key, "");
    else element.setAttribute(key, String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function put(parent, ...children) {
  parent.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

// As `put`, but what is alike stays: focus, scroll position and selection last while figures change.
export function renew(parent, ...children) {
  settle(parent, children.flat().filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
}

function settle(parent, wanted) {
  wanted.forEach((now, i) => {
    const old = parent.childNodes[i];
    if (!old) parent.append(now);
    else if (old === now) return;
    else if (old.nodeType === Node.TEXT_NODE && now.nodeType === Node.TEXT_NODE) { if (old.data !== now.data) old.data = now.data; }
    else if (old.nodeName !== now.nodeName || old.nodeName === "CANVAS" || old.kept || now.kept) old.replaceWith(now);
    else {
      for (const { name } of [...old.attributes]) if (!now.hasAttribute(name)) old.removeAttribute(name);
      for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
      settle(old, [...now.childNodes]);
    }
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

const NONE = "–";

// Records may have anything in a number's place.
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

const COUNT = new Intl.NumberFormat("en"), MOMENT = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" }); // made once: they take long to make

export function whole(value) {
  return isNumber(value) ? COUNT.format(value) : NONE;
}

export function short(value, digits = 4) {
  if (!isNumber(value)) return NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

function rounded(value, digits, way) {
  if (!(isNumber(value) && value > 0)) return short(value);
  const unit = 10 ** (digits - 1 - Math.floor(Math.log10(value)));
  return String(Number((way(value * unit) / unit).toPrecision(digits)));
}

// An ε as a person reads it: rounded up, as in the statement; a figure below the guarantee would claim too much.
export const upward = (value, digits = 4) => rounded(value, digits, (v) => Math.ceil(v * (1 - 1e-12)));

// A lower bound on ε, rounded down for the same reason.
export const downward = (value, digits = 4) => rounded(value, digits, (v) => Math.floor(v * (1 + 1e-12)));

export function percent(value, digits = 1) {
  return !isNumber(value) ? NONE : `${(value * 100).toFixed(digits)} %`;
}

export function metricText(metric, value) {
  if (!isNumber(value)) return NONE;
  return metric && metric.share ? `${(value * 100).toFixed(2)} %` : short(value);
}

export function clock(seconds) {
  if (!isNumber(seconds)) return NONE;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 120 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function moment(text) {
  const date = new Date(text);
  return text && !Number.isNaN(date.getTime()) ? MOMENT.format(date) : NONE;
}

export function described(value) {
  if (value === null || value === undefined) return NONE;
  if (typeof value !== "object") return String(value);
  return Object.entries(value).map(([key, one]) => `${key.replaceAll("_", " ")} ${described(one)}`).join(", ") || NONE;
}

const LOT = 10; // rows that a table gets in one task: input is answered between two

// A table that stays while its figures change: a cell is written where its text differs, or another node belongs into it.
export class Table {
  constructor(lot = LOT) {
    this.lot = lot;
    this.caption = make("caption");
    this.head = make("tr");
    this.body = make("tbody");
    this.element = make("div", { class: "scroll", tabindex: "0", role: "region" }, make("table", {}, this.caption, make("thead", {}, this.head), this.body));
    this.headings = "";
  }

  set(headings, rows, caption) {
    const now = JSON.stringify(headings), focused = document.activeElement;
    if (now !== this.headings) {
      this.headings = now;
      put(this.head, headings.map((one) => make("th", { scope: "col", class: one.right ? "right" : null, title: one.title, "aria-label": one.label }, one.text ?? one)));
    }
    if (this.caption.textContent !== caption) {
      this.caption.textContent = caption;
      this.element.setAttribute("aria-label", caption);
    }
    clearTimeout(this.timer);
    while (this.body.rows.length > rows.length) this.body.lastChild.remove();
    [...this.body.rows].forEach((row, i) => rows[i].forEach((cell, j) => settle(row.cells[j], [cell instanceof Node ? cell : document.createTextNode(String(cell))])));
    this.add(headings, rows);
    if (focused !== document.activeElement && this.element.contains(focused)) focused.focus(); // it went to another row
    return this;
  }

  // The rows that are not there yet, a lot of them now and the others later.
  add(headings, rows) {
    const there = this.body.rows.length;
    this.body.append(...rows.slice(there, there + this.lot).map((cells) => make("tr", {}, cells.map((cell, j) => make("td", { class: headings[j].right ? "right" : null }, cell)))));
    const more = there + this.lot < rows.length;
    if (more) this.timer = setTimeout(() => this.add(headings, rows));
    if (more) this.element.setAttribute("aria-busy", "true");
    else this.element.removeAttribute("aria-busy");
  }
}

export const table = (headings, rows, caption) => new Table(Infinity).set(headings, rows, caption).element;

export function tile(label, value, note) {
  return make("div", { class: "tile" }, make("span", { class: "label" }, label), make("strong", {}, value), note ? make("span", { class: "note" }, note) : null);
}

export function card(title, note, ...children) {
  return make("section", { class: "card" }, make("h2", {}, title), note ? make("p", { class: "note" }, note) : null, ...children);
}
