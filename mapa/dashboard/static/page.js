// The page: which view is shown, the stream of the run that is watched, keys and looks.
import { forgetCharts, leaveCharts, recolour, resetZoom } from "./charts.js";
import { make, put, renew } from "./dom.js";
import * as views from "./views.js";

const OF_A_RUN = [["fleet", "Fleet"], ["training", "Training"], ["staleness", "Staleness"], ["privacy", "Privacy"], ["traffic", "Traffic"], ["events", "Events"]];
const main = document.getElementById("main"), head = document.getElementById("run"), nav = document.getElementById("views");
const connection = document.getElementById("connection"), pause = document.getElementById("pause"), theme = document.getElementById("theme"), keys = document.getElementById("keys");
let run = "", view = "runs", compared = [], fresh = {}, sections = {}, show = null, stream = null, paused = false, timer = 0, waiting = false, turning = false, free = 0, opened = 0;
const stale = new Set(); // sections that came since the view was drawn
const built = new Map(); // the views of this run that were opened: whoever comes back finds zoom and filters as they were
const SHOWN = { fleet: ["head", "fleet"], training: ["head", "training"], traffic: ["head", "traffic"] }; // else its own alone

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  let parts;
  try { parts = path.split("/").map(decodeURIComponent); } catch { return { view: "runs", run: "" }; } // no address of ours
  if (parts[0] === "run" && parts[1]) return { view: OF_A_RUN.some(([key]) => key === parts[2]) ? parts[2] : "training", run: parts[1] };
  const names = parts[0] === "compare" ? new URLSearchParams(query).getAll("run") : [];
  if (names.length) return { view: "compare", run: "", names };
  return { view: "runs", run: "" };
}

function open() {
  const wanted = place(), mine = ++opened, other = !wanted.run || wanted.run !== run;
  clearTimeout(timer);
  if (wanted.run !== run) { leave(); fresh = sections = {}; }
  run = wanted.run;
  view = wanted.view;
  compared = wanted.names ?? [];
  show = null;
  head.hidden = !run;
  document.title = run ? `${run} – mapa` : "mapa";
  links();
  if (other) fill(make("p", { class: "quiet" }, "Loading…"));
  if (run) {
    if (!stream) watch();
    turning = true;
    afterPaint(() => { // what was pressed is seen at once, the view a frame later, what is new since then with some leisure
      if (mine !== opened) return;
      turning = false;
      free = performance.now() + 250;
      draw();
    });
  } else {
    turning = false;
    leave();
    poll();
  }
}

// Something else in the place of a run's views; their charts go with them.
function fill(...children) {
  forgetCharts();
  built.clear();
  put(main, ...children);
}

const afterPaint = (work) => requestAnimationFrame(() => setTimeout(work));

function links() {
  const entries = [["#/runs", "Runs", view === "runs"]];
  if (run) for (const [key, title] of OF_A_RUN) entries.push([`#/run/${encodeURIComponent(run)}/${key}`, title, view === key]);
  if (view === "compare") entries.push([location.hash, "Compare", true]);
  renew(nav, entries.map(([href, title, current]) => make("a", { href, "aria-current": current ? "page" : null }, title)));
}

function watch() {
  const mine = new EventSource(`/api/runs/${encodeURIComponent(run)}/stream`);
  stream = mine;
  say("connecting");
  mine.onopen = () => say("");
  mine.onmessage = (message) => {
    const { version, ...changed } = JSON.parse(message.data);
    fresh = { ...fresh, ...changed };
    for (const key of Object.keys(changed)) stale.add(key);
    if (!paused || !sections.events) sections = fresh;
    if (!paused || !show) soon();
  };
  mine.onerror = () => {
    if (mine.readyState === EventSource.CLOSED) refused(mine);
    else say("connection lost; trying again");
  };
}

// A stream that was refused tells a page nothing: ask why.
async function refused(mine) {
  const asking = new AbortController();
  let status = 0, text = "";
  try {
    const answer = await fetch(mine.url, { signal: asking.signal });
    status = answer.status;
    text = answer.ok ? "" : await answer.text();
  } catch { /* no answer at all */ }
  asking.abort();
  if (stream !== mine) return;
  if (status === 404) missing("There is no such run in this folder.");
  else say(text || "connection lost; trying again");
  timer = setTimeout(() => { if (stream === mine) watch(); }, 2000);
}

function missing(text) {
  head.hidden = true;
  show = null;
  if (!main.querySelector(".missing")) fill(make("p", { class: "quiet missing", role: "status" }, `${text} `, make("a", { href: "#/runs" }, "All runs")));
}

function leave() {
  if (stream) stream.close();
  stream = null;
  say("");
}

// Drawing has at most a fifth of the tab's time, up to a wait that nobody minds: so input is answered on a slow machine too.
function soon() {
  if (waiting) return;
  waiting = true;
  setTimeout(() => requestAnimationFrame(() => {
    const began = performance.now();
    waiting = false;
    if (!turning) draw();
    setTimeout(() => { free = performance.now() + Math.min(400, 4 * (performance.now() - began)); }); // after the paint
  }), Math.max(0, free - performance.now()));
}

function draw() {
  if (!run || !sections.head || !sections.events) return;
  head.hidden = false; // of a run that was not there at first
  views.runHead(head, sections.head);
  if (!show) {
    const known = built.get(view), body = known?.body ?? make("div", { class: "view", "data-view": view });
    leaveCharts();
    put(main, body);
    show = known?.show ?? views[view](body, run);
    built.set(view, { body, show });
  } else if (!(SHOWN[view] ?? [view]).some((key) => stale.has(key))) return;
  stale.clear();
  show(sections);
}

async function poll() {
  const mine = opened, compares = (names) => names.map((name) => `run=${encodeURIComponent(name)}`).join("&");
  let answer = null, text = "";
  try {
    answer = await fetch(view === "compare" ? `/api/compare?${compares(compared)}` : "/api/runs");
    text = await answer.text();
  } catch { answer = null; }
  if (mine !== opened) return; // another place was opened meanwhile, and asks for itself
  timer = setTimeout(poll, 2000);
  if (!answer) return say("connection lost; trying again");
  if (answer.status === 404) return missing("There is no such run in this folder.");
  say(answer.ok ? "" : text);
  if (!answer.ok || (paused && show)) return;
  if (!show) {
    const body = make("div", { class: "view", "data-view": view });
    fill(body);
    show = view === "compare" ? views.compare(body) : views.runs(body, (names) => { location.hash = `#/compare?${compares(names)}`; });
  }
  show(JSON.parse(text));
}

function say(text) { connection.textContent = text; }

function setPaused(now) {
  paused = now;
  pause.setAttribute("aria-pressed", String(now));
  pause.textContent = now ? "Go on" : "Pause";
  if (now) return;
  sections = fresh;
  for (const key of Object.keys(fresh)) stale.add(key);
  draw();
}

// In other colours, or for another screen: charts, and what a view draws itself, once the charts have their scales.
function drawAnew() {
  recolour();
  queueMicrotask(() => { if (show && run) show(sections); });
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  theme.textContent = name === "dark" ? "Light" : "Dark";
  drawAnew();
}

function switchTheme() {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  kept = name;
  try { localStorage.setItem("theme", name); } catch { /* a browser that keeps nothing */ }
  setTheme(name);
}

function help() {
  const rows = [["1 – 6", "views of a run"], ["0", "all runs"], ["p", "pause, go on"], ["z", "zoom out; or double-click a chart"], ["← → + −", "in a chart: values, zoom"], ["d", "dark or light"], ["?", "this list"]];
  put(keys, make("h2", { id: "keys-title" }, "Keys"), make("dl", {}, rows.flatMap(([key, text]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, text)])),
    make("p", {}, "Drag across a chart to zoom in. Point at it for exact values. Click a name in the legend to hide its line."), make("button", { type: "button", onclick: () => keys.close() }, "Close"));
  keys.showModal();
}

document.addEventListener("keydown", (event) => {
  if (keys.open || event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName)) return;
  const number = Number(event.key), watched = place().run; // of the address: it changes before the view does
  if (event.key === "p") setPaused(!paused);
  else if (event.key === "d") switchTheme();
  else if (event.key === "z") resetZoom();
  else if (event.key === "?") help();
  else if (event.key === "0") location.hash = "#/runs";
  else if (watched && number >= 1 && number <= OF_A_RUN.length) location.hash = `#/run/${encodeURIComponent(watched)}/${OF_A_RUN[number - 1][0]}`;
});
pause.addEventListener("click", () => setPaused(!paused));
theme.addEventListener("click", switchTheme);
document.getElementById("help").addEventListener("click", help);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); main.scrollIntoView(); }); // its hash is no place
const dark = matchMedia("(prefers-color-scheme: dark)");
let kept = null;
try { kept = localStorage.getItem("theme"); } catch { /* a browser that keeps nothing */ }
setTheme(kept === "dark" || kept === "light" ? kept : dark.matches ? "dark" : "light");
dark.addEventListener("change", () => { if (!kept) setTheme(dark.matches ? "dark" : "light"); });
addEventListener("hashchange", open);
(function watchPixels() { // another screen, or a zoom of the browser
  matchMedia(`(resolution: ${devicePixelRatio}dppx)`).addEventListener("change", () => { drawAnew(); watchPixels(); }, { once: true });
})();
open();
