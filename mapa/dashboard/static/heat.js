// Heat maps and the strips of a fleet's lanes, on canvases.
import { colour, compact, grid, ink, isDark, live } from "./charts.js";
import { make } from "./dom.js";

// A heat map: columns of counts. Darker is more, on a root scale so that rare values can be seen.
export class Heat {
  constructor(labels, height = 260) {
    this.labels = labels;
    this.height = height;
    this.at = null;
    this.canvas = make("canvas", { role: "img", "aria-label": `${labels.title}; arrow keys: counts`, tabindex: "0", onkeydown: (event) => this.key(event) });
    this.said = make("p", { class: "hover", "aria-live": "polite" }, "Point at a cell for its count.");
    this.element = make("div", { class: "chart" }, this.canvas, this.said);
    this.element.kept = true;
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.width = 0;
    this.observer = new ResizeObserver(([one]) => { this.width = Math.floor(one.contentRect.width); this.draw(); });
    this.observer.observe(this.element);
    live.add(this);
  }

  set(heat) { this.heat = heat; this.draw(); }
  reset() {}
  leave() {}
  recolour() { this.draw(); }
  destroy() { live.delete(this); this.observer.disconnect(); }

  draw() {
    const { width } = this;
    if (!this.heat || !width) return;
    const { cells, height: tall } = this.heat;
    const rows = Math.max(1, ...cells.map((column) => column.length)), columns = Math.max(1, cells.length);
    const ctx = cleared(this.canvas, width, this.height);
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
    const { left, top, w, h, rows, columns } = this.place;
    const i = Math.floor((event.offsetX - left) / w), j = rows - 1 - Math.floor((event.offsetY - top) / h);
    if (i >= 0 && i < columns && j >= 0 && j < rows) this.say(i, j);
  }

  key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!this.place || !step) return;
    event.preventDefault();
    const { rows, columns } = this.place, [i, j] = this.at ?? [columns - 1 - step[0], -step[1]];
    this.say(Math.max(0, Math.min(columns - 1, i + step[0])), Math.max(0, Math.min(rows - 1, j + step[1])));
  }

  say(i, j) {
    const { tall } = this.place, { width, cells } = this.heat;
    this.at = [i, j];
    const count = cells[i]?.[j] ?? 0;
    const stale = tall === 1 ? `τ = ${j}` : `τ ${j * tall} to ${(j + 1) * tall - 1}`;
    this.said.textContent = `t ${Math.floor(i * width) + 1} to ${Math.floor((i + 1) * width)}, ${stale}: ${count.toLocaleString("en")} updates`;
  }
}

// One edge's updates over time as a small strip; all strips of a fleet share one scale.
const STRIP = { width: 190, height: 24 }; // pixels

export function strip(canvas, counts, buckets, most) {
  const { width, height } = STRIP, ctx = cleared(canvas, width, height);
  ctx.fillStyle = colour(0);
  const w = width / buckets;
  counts.forEach((count, i) => {
    if (!count) return;
    const tall = Math.max(2, (height - 1) * Math.sqrt(count / most)); // a root: a slow edge is seen beside a fast one
    ctx.fillRect(i * w, height - tall, Math.max(1, w - 0.5), tall);
  });
}

// A canvas of this size with nothing on it; one that has the size already is not made anew.
function cleared(canvas, width, height) {
  const ratio = devicePixelRatio, wide = Math.round(width * ratio), tall = Math.round(height * ratio), ctx = canvas.getContext("2d");
  if (canvas.width !== wide || canvas.height !== tall) {
    canvas.width = wide;
    canvas.height = tall;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, width, height);
  return ctx;
}
