// Charts: uPlot for lines and bars. Colours follow the page's light or dark look, and differ for the colour-blind too.
import { make, short } from "./dom.js";

const LIGHT = ["#0b6bcb", "#c9480a", "#0a7d4f", "#8a3ffc", "#a8680a", "#c2185b", "#007a87", "#5c6470"];
const DARK = ["#6ab0ff", "#ff9a5c", "#4fd39a", "#c0a0ff", "#f0bf4c", "#ff85b3", "#4fd1dc", "#b4bcc8"];
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
export const live = new Set();
const SPARSE = 80; // points up to which each is marked

export const isDark = () => document.documentElement.dataset.theme === "dark";
export const colour = (place) => (isDark() ? DARK : LIGHT)[place % LIGHT.length];
export const dash = (place) => DASHES[Math.floor(place / LIGHT.length) % DASHES.length];
export const ink = () => (isDark() ? "#aab4c2" : "#4a5462");
export const grid = () => (isDark() ? "#2a323d" : "#e3e7ec");

export function forgetCharts() {
  for (const chart of live) chart.destroy();
  live.clear();
}

// Those that can be seen.
export function resetZoom() {
  for (const chart of live) if (chart.element.isConnected) chart.reset();
}

// Nobody points at a chart whose view is being left.
export function leaveCharts() {
  for (const chart of live) if (chart.element.isConnected) chart.leave();
}

// Draw all anew: in other colours, or on a screen of other pixels.
export function recolour() {
  for (const chart of live) chart.recolour();
}

// Charts are built one in a task: a view of many answers input in between.
const unbuilt = [];

function inTurn(build) {
  if (unbuilt.push(build) > 1) return;
  setTimeout(function next() {
    try {
      unbuilt[0]();
    } finally {
      unbuilt.shift();
      if (unbuilt.length) setTimeout(next);
    }
  });
}

// A chart with its legend. `options`: x {label, unit}, y {label, share, log, least}, lines [{label, steps, bars, dash, place, text}], bands.
export class Chart {
  constructor(options, height = 260) {
    this.options = options;
    this.height = height;
    this.said = make("p", { class: "unseen", "aria-live": "polite" });
    this.element = make("div", { class: "chart", role: "group", tabindex: "0", "aria-label": `${options.y.label} over ${options.x.label}; arrow keys: values, plus and minus: zoom`, onkeydown: (event) => this.key(event) }, this.said);
    this.element.kept = true;
    this.element.addEventListener("blur", () => this.leave());
    this.zoomed = false;
    this.values = null;
    this.at = null; // the place that the keyboard reads
    live.add(this);
    this.width = 0; // as last observed: to ask for it while figures change would lay the page out each time
    this.observer = new ResizeObserver(([one]) => { if (one.contentRect.width) { this.width = Math.floor(one.contentRect.width); this.fit(); } }); // none: its view is left
    this.observer.observe(this.element);
  }

  set(values) {
    this.values = values;
    if (!this.plot) return this.fit();
    if (this.zoomed) {
      const { min, max } = this.plot.scales.x;
      this.plot.setData(values, false);
      this.plot.setScale("x", { min, max });
    } else this.plot.setData(values);
    this.rest();
  }

  build() {
    const { x, y, lines, marks } = this.options;
    const axis = { stroke: ink(), grid: { stroke: grid(), width: 1 }, ticks: { stroke: grid(), width: 1 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 18 };
    const series = lines.map((line, i) => {
      const place = line.place ?? i;
      return {
        label: line.label, stroke: colour(place), width: line.bars ? 0 : 2, dash: line.dash ?? dash(place), spanGaps: true,
        fill: line.bars ? colour(place) : undefined,
        paths: line.bars ? uPlot.paths.bars({ size: [0.86, 60], align: 1 }) : line.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
        points: { show: line.bars ? false : line.points ?? ((plot) => plot.data[0].length <= SPARSE), size: 5 },
        value: (_, value) => (value === null || value === undefined ? "–" : (line.text ?? y.text ?? ((v) => short(v, 6)))(value)),
      };
    });
    const hooks = { setSelect: [() => { this.zoomed = true; }], setLegend: [() => this.rest()], draw: marks ? [(plot) => this.mark(plot)] : [] };
    this.plot = new uPlot({
      width: this.width, height: this.height, series: [{ label: x.label, value: (_, v) => (v === null || v === undefined ? "–" : (x.text ?? ((value) => short(value, 7)))(v)) }, ...series],
      scales: { x: { time: false }, y: { distr: y.log ? 3 : 1, range: y.log ? undefined : (_, low, high) => extent(low, high, y) } },
      axes: [
        { ...axis, label: x.unit ? `${x.label} (${x.unit})` : x.label, values: (_, ticks) => ticks.map((v) => (v === null ? "" : compact(v))) },
        { ...axis, label: y.unit ? `${y.label} (${y.unit})` : y.label, size: 62, values: (_, ticks) => ticks.map((v) => (v === null ? "" : y.share ? `${short(v * 100, 4)} %` : compact(v))) },
      ],
      cursor: { dataIdx: (plot, i, at, x) => this.indexAt(plot, i, at, x), drag: { x: true, y: false, setScale: true }, focus: { prox: 24 }, sync: this.options.sync ? { key: this.options.sync } : undefined, bind: { dblclick: () => () => { this.reset(); return null; } } },
      legend: { live: true }, hooks,
    }, this.values, this.element);
    this.plot.over.addEventListener("mousemove", () => { this.at = null; });
    this.plot.over.addEventListener("mouseleave", () => this.rest());
    for (const row of this.element.querySelectorAll(".u-legend .u-series:not(:first-child) th")) {
      row.setAttribute("tabindex", "0");
      row.setAttribute("title", "click or Enter: hide or show");
      row.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); row.click(); } });
    }
    this.rest();
  }

  // A bar and a step reach from their place to the next one; a curve has the value of its last point until its next.
  indexAt(plot, i, at, x) {
    const stepwise = this.options.lines[0].bars || this.options.lines[0].steps;
    if (stepwise && at > 0 && (plot.data[0][at] > x || at > this.last())) at -= 1;
    return i && !this.options.lines[0].bars ? asOf(plot.data[i], at) : at;
  }

  // The last place with a value.
  last() {
    const has = (i) => this.values.slice(1).some((column) => column[i] !== null && column[i] !== undefined);
    let i = this.values[0].length - 1;
    while (i > 0 && !has(i)) i -= 1;
    return i;
  }

  // Where nobody points, the legend has the last value of each line.
  rest() {
    if (!this.plot || this.plot.cursor.left >= 0 || !this.values) return;
    const [, ...lines] = this.values, last = [lines.length ? lines[0] : [], ...lines].map((column) => column.findLastIndex((value) => value !== null && value !== undefined));
    this.plot.setLegend({ idxs: last.map((i) => (i < 0 ? null : i)) }, false);
  }

  key(event) {
    if (!this.plot || event.target !== this.element || event.ctrlKey || event.metaKey || event.altKey) return;
    const xs = this.values[0], last = this.last(), { min, max } = this.plot.scales.x, at = this.at ?? (this.plot.cursor.left >= 0 ? this.plot.cursor.idxs[0] ?? last : null);
    const steps = { ArrowLeft: at === null ? last : at - 1, ArrowRight: at === null ? 0 : at + 1, Home: 0, End: last };
    if (event.key in steps) this.pointAt(Math.max(0, Math.min(last, steps[event.key])));
    else if (event.key === "+" || event.key === "-") {
      const middle = at === null ? (min + max) / 2 : xs[at], half = ((max - min) * (event.key === "+" ? 0.5 : 2)) / 2;
      const low = Math.max(xs[0], middle - half), high = Math.min(xs.at(-1), middle + half);
      if (high <= low) return;
      this.zoomed = low > xs[0] || high < xs.at(-1);
      this.plot.setScale("x", { min: low, max: high });
      if (at !== null) queueMicrotask(() => this.pointAt(at)); // once the scale is in force
    } else return;
    event.preventDefault();
  }

  pointAt(i) {
    const x = this.values[0][i], { min, max } = this.plot.scales.x;
    this.at = i;
    if (x < min || x > max) { // it is beside the window: that moves along
      const low = x < min ? x : x - (max - min);
      this.plot.setScale("x", { min: low, max: low + (max - min) });
      queueMicrotask(() => this.say(i));
    } else this.say(i);
  }

  // Without a pointer and without the keyboard the legend has the last values again.
  leave() {
    this.at = null;
    if (!this.plot) return;
    this.plot.setCursor({ left: -10, top: -10 });
    this.rest();
  }

  say(i) {
    this.plot.setCursor({ left: this.plot.valToPos(this.values[0][i], "x") + 0.01, top: this.plot.over.clientHeight / 2 });
    this.said.textContent = [...this.element.querySelectorAll(".u-legend .u-series")].map((row) => `${row.querySelector(".u-label").textContent}: ${row.querySelector(".u-value").textContent}`).join(", ");
  }

  mark(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const { at, dashed } of this.options.marks()) {
      const left = Math.round(plot.valToPos(at, "x", true)) + 0.5;
      ctx.strokeStyle = ink();
      ctx.globalAlpha = dashed ? 0.8 : 0.5;
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash(dashed ? [3 * devicePixelRatio, 4 * devicePixelRatio] : []);
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  reset() {
    this.zoomed = false;
    if (this.plot && this.values) this.plot.setData(this.values);
    this.rest();
  }

  fit() {
    if (!this.width || !this.values) return;
    if (!this.plot) inTurn(() => { if (!this.plot && live.has(this)) this.build(); });
    else if (this.plot.width !== this.width) this.plot.setSize({ width: this.width, height: this.height });
  }

  recolour() {
    if (!this.plot) return;
    const { min, max } = this.plot.scales.x, shown = this.plot.series.map((one) => one.show);
    this.plot.destroy();
    this.at = null;
    this.build();
    shown.forEach((show, i) => { if (i && !show) this.plot.setSeries(i, { show }); });
    if (this.zoomed) this.plot.setScale("x", { min, max });
  }

  destroy() {
    live.delete(this);
    this.observer.disconnect();
    if (this.plot) this.plot.destroy();
  }
}

// The place of the last value at or before `at`: a curve keeps its value until its next point.
function asOf(column, at) {
  for (let i = at; i >= 0; i--) if (column[i] !== null && column[i] !== undefined) return i;
  return at;
}

function extent(low, high, y) {
  if (low === null || high === null) return [0, 1];
  const least = y.least === undefined ? low : Math.min(y.least, low);
  const room = (high - least || Math.abs(high) || 1) * 0.06;
  return [y.least === undefined ? least - room : least, high + room];
}

export function compact(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${short(value / 1e6, 4)}M`;
  if (size >= 1e4) return `${short(value / 1e3, 4)}k`;
  return short(value, 4);
}

// Several curves on one x: the union of their places, gaps as null.
export function joined(curves) {
  const places = [...new Set(curves.flatMap(([xs]) => xs))].filter((x) => x !== null && x !== undefined).sort((a, b) => a - b);
  const where = new Map(places.map((x, i) => [x, i]));
  const columns = curves.map(([xs, ys]) => {
    const column = new Array(places.length).fill(null);
    xs.forEach((x, i) => { if (where.has(x)) column[where.get(x)] = ys[i]; });
    return column;
  });
  return [places, ...columns];
}
