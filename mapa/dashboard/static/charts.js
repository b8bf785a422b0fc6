// Charts: uPlot for lines and bars, a canvas for heat maps and lanes. Colours follow the page's light or dark look.
import { make, short } from "./dom.js";

const LIGHT = ["#0b6bcb", "#c9480a", "#0a7d4f", "#8a3ffc", "#a8680a", "#c2185b", "#007a87", "#5c6470"];
const DARK = ["#6ab0ff", "#ff9a5c", "#4fd39a", "#c0a0ff", "#f0bf4c", "#ff85b3", "#4fd1dc", "#b4bcc8"];
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const live = new Set();

export const isDark = () => document.documentElement.dataset.theme === "dark";
export const colour = (place) => (isDark() ? DARK : LIGHT)[place % LIGHT.length];
export const dash = (place) => DASHES[Math.floor(place / LIGHT.length) % DASHES.length];
const ink = () => (isDark() ? "#aab4c2" : "#4a5462");
const grid = () => (isDark() ? "#2a323d" : "#e3e7ec");

export function forgetCharts() {
  for (const chart of live) chart.destroy();
  live.clear();
}

export function resetZoom() {
  for (const chart of live) chart.reset();
}

// A chart with its legend. `options`: x {label, unit}, y {label, share, log, least}, lines [{label, steps, bars, dash, place, text}], bands.
export class Chart {
  constructor(options, height = 260) {
    this.options = options;
    this.height = height;
    this.element = make("div", { class: "chart", role: "img", "aria-label": `${options.y.label} over ${options.x.label}` });
    this.zoomed = false;
    this.values = null;
    live.add(this);
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.element);
  }

  set(values) {
    this.values = values;
    if (!this.element.clientWidth) return;
    if (!this.plot) this.build();
    else if (this.zoomed) {
      const { min, max } = this.plot.scales.x;
      this.plot.setData(values, false);
      this.plot.setScale("x", { min, max });
    } else this.plot.setData(values);
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
        points: { show: line.bars ? false : line.points ?? undefined, size: 5 },
        value: (_, value) => (value === null || value === undefined ? "–" : (line.text ?? y.text ?? ((v) => short(v, 6)))(value)),
      };
    });
    const hooks = { setSelect: [() => { this.zoomed = true; }], draw: marks ? [(plot) => this.mark(plot)] : [] };
    this.plot = new uPlot({
      width: this.element.clientWidth, height: this.height, series: [{ label: x.label, value: (_, v) => (v === null || v === undefined ? "–" : (x.text ?? ((value) => short(value, 7)))(v)) }, ...series],
      scales: { x: { time: false }, y: { distr: y.log ? 3 : 1, range: y.log ? undefined : (_, low, high) => extent(low, high, y) } },
      axes: [
        { ...axis, label: x.unit ? `${x.label} (${x.unit})` : x.label, values: (_, ticks) => ticks.map((v) => (v === null ? "" : compact(v))) },
        { ...axis, label: y.unit ? `${y.label} (${y.unit})` : y.label, size: 62, values: (_, ticks) => ticks.map((v) => (v === null ? "" : y.share ? `${short(v * 100, 4)} %` : compact(v))) },
      ],
      cursor: { drag: { x: true, y: false, setScale: true }, focus: { prox: 24 }, sync: this.options.sync ? { key: this.options.sync } : undefined, bind: { dblclick: () => () => { this.reset(); return null; } } },
      legend: { live: true }, hooks,
    }, this.values, this.element);
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
  }

  fit() {
    const width = this.element.clientWidth;
    if (!width || !this.values) return;
    if (!this.plot) this.build();
    else if (this.plot.width !== width) this.plot.setSize({ width, height: this.height });
  }

  destroy() {
    this.observer.disconnect();
    if (this.plot) this.plot.destroy();
  }
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

// A heat map: columns of counts. Darker is more, on a root scale so that rare values can be seen.
export class Heat {
  constructor(labels, height = 260) {
    this.labels = labels;
    this.height = height;
    this.canvas = make("canvas", { role: "img", "aria-label": labels.title });
    this.said = make("p", { class: "hover", "aria-live": "off" }, "Point at a cell for its count.");
    this.element = make("div", { class: "chart" }, this.canvas, this.said);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
    live.add(this);
  }

  set(heat) { this.heat = heat; this.draw(); }
  reset() {}
  destroy() { this.observer.disconnect(); }

  draw() {
    const width = this.element.clientWidth;
    if (!this.heat || !width) return;
    const ratio = devicePixelRatio, { cells, height: tall } = this.heat;
    const rows = Math.max(1, ...cells.map((column) => column.length)), columns = Math.max(1, cells.length);
    this.canvas.width = width * ratio;
    this.canvas.height = this.height * ratio;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${this.height}px`;
    const ctx = this.canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    const left = 62, bottom = this.height - 40, top = 8, right = width - 12;
    const most = Math.max(1, ...cells.flat());
    const w = (right - left) / columns, h = (bottom - top) / rows;
    this.place = { left, top, w, h, rows, columns, tall };
    const [r, g, b] = isDark() ? [106, 176, 255] : [11, 107, 203];
    cells.forEach((column, i) => column.forEach((count, j) => {
      if (!count) return;
      ctx.fillStyle = `rgba(${r},${g},${b},${0.12 + 0.88 * Math.sqrt(count / most)})`;
      ctx.fillRect(left + i * w, bottom - (j + 1) * h, Math.max(1, w - (w > 4 ? 1 : 0)), Math.max(1, h - (h > 4 ? 1 : 0)));
    }));
    ctx.fillStyle = ink();
    ctx.strokeStyle = grid();
    ctx.font = "12px system-ui, sans-serif";
    ctx.strokeRect(left - 0.5, top, right - left, bottom - top + 0.5);
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    const every = Math.ceil(rows / 8);
    for (let j = 0; j < rows; j += every) ctx.fillText(compact(j * tall), left - 8, bottom - (j + 0.5) * h);
    ctx.textAlign = "center";
    ctx.textBaseline = "top";
    const step = Math.max(1, Math.ceil(columns / Math.max(2, Math.floor(width / 110))));
    for (let i = 0; i < columns; i += step) ctx.fillText(compact(i * this.heat.width + 1), left + (i + 0.5) * w, bottom + 6);
    ctx.fillText(this.labels.x, (left + right) / 2, bottom + 22);
    ctx.save();
    ctx.translate(10, (top + bottom) / 2);
    ctx.rotate(-Math.PI / 2);
    ctx.fillText(this.labels.y, 0, -6);
    ctx.restore();
  }

  point(event) {
    if (!this.place) return;
    const { left, top, w, h, rows, columns, tall } = this.place, { width, cells } = this.heat;
    const i = Math.floor((event.offsetX - left) / w), j = rows - 1 - Math.floor((event.offsetY - top) / h);
    if (i < 0 || i >= columns || j < 0 || j >= rows) return;
    const count = cells[i]?.[j] ?? 0;
    const stale = tall === 1 ? `τ = ${j}` : `τ ${j * tall} to ${(j + 1) * tall - 1}`;
    this.said.textContent = `t ${Math.floor(i * width) + 1} to ${Math.floor((i + 1) * width)}, ${stale}: ${count.toLocaleString("en")} updates`;
  }
}

// One edge's updates over time as a small strip; all strips of a fleet share one scale.
export function strip(canvas, counts, buckets, most) {
  const width = canvas.clientWidth || 160, height = canvas.clientHeight || 22, ratio = devicePixelRatio;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  ctx.fillStyle = colour(0);
  const w = width / buckets;
  counts.forEach((count, i) => {
    if (!count) return;
    const tall = Math.max(1, (height - 1) * (count / most));
    ctx.fillRect(i * w, height - tall, Math.max(1, w - 0.5), tall);
  });
}
