// The views of one run. Each returns a function that shows the sections as they are now.
import { Chart, joined } from "./charts.js";
import { Table, card, clock, described, downward, make, metricText, moment, percent, put, renew, short, table, tile, upward, whole } from "./dom.js";
import { Heat, strip } from "./heat.js";

const T = { label: "update t", text: whole };
const SECONDS = { label: "time since the first update", unit: "s", text: (v) => `${short(v, 6)} s` };
const NO_TIMES = "This engine records no times: only updates can be the axis.";

export function fleet(root) {
  const summary = make("div", { class: "tiles" }), lanes = new Table(), nobody = make("p", { class: "quiet" }, "No edge has joined yet."), canvases = new Map();
  put(root, summary, make("div", { class: "lanes" }, nobody, lanes.element));
  return ({ head, fleet: f }) => {
    const states = f.edges.map((edge) => state(edge, head));
    const count = (name) => states.filter((one) => one.kind === name).length;
    renew(summary,
      tile("edges seen", whole(head.edges_seen), `of ${whole(head.edges)} configured`),
      tile("at work", whole(count("ok"))), tile("silent", whole(count("silent"))), tile("gone", whole(count("gone"))),
      tile("ended", whole(count("ended"))));
    const width = Math.max(1, ...f.edges.map((edge) => edge.strip.length)), unit = f.timed ? "s" : "updates";
    const wide = Math.max(1, ...f.edges.map((edge) => edge.strip_width));
    const strips = f.edges.map((edge) => widened(edge.strip, wide / edge.strip_width));
    const buckets = Math.max(1, ...strips.map((one) => one.length)), most = Math.max(1, ...strips.flat());
    const headings = [{ text: "k", right: true }, "edge", "state", { text: "link", title: "device and link that the scenario asks for; measured round trip after the run" },
      { text: "pace (updates/s)", right: true }, { text: "staleness mean / max / last", right: true }, { text: "applied", right: true }, { text: "share", right: true },
      { text: f.budget ? `ε spent of ${short(f.budget)}` : "ε spent", right: true }, { text: `updates over time (a bar: ${short(wide)} ${unit})`, title: "height: the square root of the count, one scale for all edges" }];
    const rows = f.edges.map((edge, i) => {
      if (!canvases.has(i)) canvases.set(i, make("canvas", { class: "strip", role: "img" })); // of the lane, whoever is in it
      const canvas = canvases.get(i);
      canvas.setAttribute("aria-label", `${edge.applied} updates over time`);
      strip(canvas, strips[i], Math.max(buckets, width), most);
      const trip = edge.round_trip_ms === null ? "" : ` · round trip ${short(edge.round_trip_ms, 3)} ms`;
      return [whole(edge.edge), edge.edge_id ?? "", make("span", { class: `state ${states[i].kind}` }, states[i].text), (edge.device ? `${edge.device} · ` : "") + link(edge.link) + trip,
        short(edge.pace, 3), `${short(edge.staleness_mean, 3)} / ${whole(edge.staleness_max)} / ${whole(edge.staleness_last)}`, whole(edge.applied), percent(edge.share),
        spent(edge, f.budget), canvas];
    });
    nobody.hidden = rows.length > 0;
    lanes.element.hidden = !rows.length;
    lanes.set(headings, rows, `A lane for each edge${more(f.hidden)}`);
  };
}

const more = (hidden) => (hidden ? `; ${whole(hidden)} more edges are not shown` : "");

function link(asked) {
  if (!asked) return "–";
  const { name, ...rest } = asked;
  const given = Object.entries(rest).filter(([, value]) => value !== null && !(Array.isArray(value) && !value.length));
  return [name, given.length ? described(Object.fromEntries(given)) : null].filter(Boolean).join(", ") || "–";
}

function widened(counts, factor) {
  if (factor <= 1) return counts;
  const wide = new Array(Math.ceil(counts.length / factor)).fill(0);
  counts.forEach((count, i) => { wide[Math.floor(i / factor)] += count; });
  return wide;
}

function state(edge, head) {
  if (edge.gone) return { kind: "gone", text: `gone: ${edge.gone}` };
  if (head.state === "ended") return { kind: "ended", text: "run ended" };
  if (head.state === "quiet") return { kind: "wait", text: "no news of the run" };
  if (edge.silent !== null) return { kind: "silent", text: `silent ${short(edge.silent, 3)} s` };
  return edge.applied ? { kind: "ok", text: "at work" } : { kind: "wait", text: "joined" };
}

function exponent(value) {
  return value === null ? "–" : value < 0.01 ? Number(value).toExponential() : String(value);
}

function spent(edge, budget) {
  if (edge.epsilon === null) return edge.epsilon_pending ? make("small", {}, "computing…") : "–";
  const of = edge.epsilon_of === null ? "" : `up to ${whole(edge.epsilon_of)} releases`;
  const most = edge.epsilon_exact ? "" : "≤ ";
  const bar = budget ? make("meter", { min: 0, max: budget, value: Math.min(edge.epsilon, budget), "aria-label": `${most}${upward(edge.epsilon)} of ${budget}` }) : null;
  return make("span", { class: "spent" }, `${most}${upward(edge.epsilon)}`, bar, of ? make("small", {}, of) : null);
}

export function training(root) {
  let signature = "", charts = {}, notes = {}, schedule = null, axis = "t", last = null;
  const choice = make("div", { class: "choice", role: "group", "aria-label": "Axis" });
  const grid = make("div", { class: "grid" });
  put(root, choice, grid);
  const buttons = [["t", "over updates"], ["seconds", "over seconds"]].map(([key, text]) =>
    make("button", { type: "button", onclick: () => { axis = key; signature = ""; if (last) show(last); } }, text));
  put(choice, buttons);
  function show(sections) {
    last = sections;
    const { head, training: t } = sections, names = Object.keys(t.curves);
    if (axis === "seconds" && !head.timed) axis = "t";
    buttons[0].setAttribute("aria-pressed", axis === "t");
    buttons[1].setAttribute("aria-pressed", axis === "seconds");
    buttons[1].disabled = !head.timed;
    buttons[1].title = head.timed ? "" : NO_TIMES;
    const now = JSON.stringify([axis, names, t.stages.length > 0, t.plan.length > 0]);
    if (now !== signature) {
      signature = now;
      for (const chart of Object.values(charts)) chart.destroy();
      charts = {};
      notes = {};
      const cards = names.map((name) => {
        const metric = head.metrics.find((one) => one.name === name);
        const text = (v) => (metric?.share ? `${(v * 100).toFixed(2)} %` : short(v, 7));
        charts[name] = new Chart({ x: axis === "t" ? T : SECONDS, y: { label: name, share: metric?.share, text }, lines: [{ label: name, place: names.indexOf(name) }], sync: axis === "t" ? "training" : "seconds",
          marks: axis === "t" ? () => last.training.stages.slice(1).map((stage) => ({ at: stage.t })) : undefined });
        return card(name, null, notes[name] = make("p", { class: "note" }), charts[name].element);
      });
      if (t.stages.length) {
        for (const [key, title] of [["sensitivity", "ΔS"], ["learning_rate", "γ"]]) {
          const lines = [{ label: `${title} of the run`, steps: true, points: false }];
          if (t.plan.length) lines.push({ label: `${title} by theory`, steps: true, points: false, dash: [6, 4], place: 1 });
          charts[key] = new Chart({ x: T, y: { label: title, log: key === "sensitivity" }, lines, sync: "training", marks: () => last.training.plan.slice(1).map((stage) => ({ at: stage.t, dashed: true })) });
          cards.push(card(key === "sensitivity" ? "Sensitivity ΔS" : "Learning rate γ", t.plan.length ? "Dashed: the schedule that follows from the first stage by theory." : null, charts[key].element));
        }
        schedule = make("div");
        cards.push(make("section", { class: "card wide" }, schedule));
      }
      if (!cards.length) cards.push(make("p", { class: "quiet" }, "No evaluation is on record yet."));
      put(grid, cards.length ? cards : make("p", { class: "quiet" }, "No evaluation and no stage yet."));
    }
    for (const name of names) {
      renew(notes[name], axis === "t" && t.stages.length > 1 ? "Vertical lines: a stage opened." : "");
      charts[name].set([t.curves[name][axis], t.curves[name].value]);
    }
    if (t.stages.length) {
      const end = Math.max(head.updates, t.stages.at(-1).t);
      for (const key of ["sensitivity", "learning_rate"]) {
        const curves = [stepped(t.stages, key, end)];
        if (t.plan.length) curves.push(stepped(t.plan, key, Math.max(end, head.iterations ?? 0)));
        charts[key].set(filled(joined(curves)));
      }
      const planned = new Map(t.plan.map((stage) => [stage.stage, stage]));
      const right = (text) => ({ text, right: true });
      renew(schedule, table([right("stage"), right("first update"), right("by theory"), right("ΔS"), right("γ"), right("T_s"), right("by theory"), right("τ_max"), ""],
        t.stages.map((stage) => [whole(stage.stage), whole(stage.t), whole(planned.get(stage.stage)?.t), short(stage.sensitivity), short(stage.learning_rate), whole(stage.length), whole(planned.get(stage.stage)?.length), whole(stage.tau_max), stage.reopened ? "reopened" : ""]),
        "Stages beside the theoretical schedule"));
    }
  }
  return show;
}

function stepped(stages, key, end) {
  const xs = stages.map((stage) => stage.t), ys = stages.map((stage) => stage[key]);
  if (xs.length && end > xs.at(-1)) { xs.push(end); ys.push(ys.at(-1)); }
  return [xs, ys];
}

// A stepped line holds its value between its own places; after its end it has none.
function filled([xs, ...columns]) {
  return [xs, ...columns.map((column) => {
    const end = column.findLastIndex((value) => value !== null);
    let value = null;
    return column.map((one, i) => { if (one !== null) value = one; return i <= end ? value : null; });
  })];
}

export function staleness(root) {
  const tiles = make("div", { class: "tiles" });
  const bars = new Chart({ x: { label: "staleness τ", text: (v) => short(v) }, y: { label: "updates", least: 0, text: whole }, lines: [{ label: "updates", bars: true }] });
  const beyond = make("p", { class: "note" });
  const heat = new Heat({ title: "Staleness over updates", x: "update t", y: "staleness τ" });
  put(root, tiles, make("div", { class: "grid" }, card("Histogram", "τ = t − the version that the edge read.", beyond, bars.element), card("Over time", "Each column: a stretch of updates. The stronger the colour, the more updates of this staleness.", heat.element)));
  return ({ staleness: s }) => {
    const m = s.summary;
    renew(beyond, s.beyond ? `${whole(s.beyond)} updates of yet other values are not in it.` : "");
    renew(tiles, tile("mean", short(m.mean)), tile("median", whole(m.p50)), tile("90 %", whole(m.p90)), tile("99 %", whole(m.p99)), tile("max", whole(m.max)));
    bars.set([[...s.bins, 0].map((_, i) => i * s.bin_width), [...s.bins, null]]); // with the end of the last bar
    heat.set(s.heat);
  };
}

export function privacy(root) {
  let signature = "", chart = null, axis = "t";
  const words = make("div"), place = make("div"), edges = make("div"), audit = make("div");
  put(root, make("section", { class: "card statement" }, make("h2", {}, "Statement"), words), place, edges, audit);
  return ({ privacy: p }) => {
    renew(words, p.words.map((line) => make("p", {}, line)));
    renew(audit, p.audit ? audited(p.audit) : null);
    const now = JSON.stringify([p.curves.map((one) => one.edge), p.hidden_curves, p.budget, p.pending && !p.curves.length]);
    if (now !== signature) {
      signature = now;
      if (chart) chart.destroy();
      const lines = p.curves.map((one) => ({ label: one.edge_id || `edge ${one.edge}`, points: p.curves.length < 9 }));
      if (p.budget) lines.push({ label: "budget", dash: [4, 4], points: false, place: 7 });
      chart = new Chart({ x: T, y: { label: "ε", least: 0, text: (v) => upward(v, 6) }, lines }, 300);
      put(place, p.curves.length
        ? card("ε of each edge over updates", `At δ = ${exponent(p.delta)}, ${p.adjacency} adjacency, of this run's releases alone; computed at 1, 2, 3, 4, 6, 8, … releases; the last point is what the fleet shows: the statement's figure or, while the run goes on, a bound. An edge whose releases differ in kind has none.${p.hidden_curves ? ` Drawn are ${whole(p.curves.length)} edges of ${whole(p.curves.length + p.hidden_curves)}.` : ""}`, chart.element)
        : make("p", { class: "quiet" }, p.pending ? "Computing ε…" : "No ε over time: none is guaranteed."));
    }
    if (p.curves.length) {
      const values = joined(p.curves.map((one) => [one[axis], one.epsilon]));
      if (p.budget) values.push(values[0].map(() => p.budget));
      chart.set(values);
    }
    const right = (text) => ({ text, right: true });
    renew(edges, p.edges.length ? table([right("k"), "edge", right("n_k"), right("releases"), "release", "sampler", right("ε"), right("ε replace-one"), "method"],
      p.edges.map((edge) => [whole(edge.edge), edge.edge_id ?? "", whole(edge.shard_size), whole(edge.releases), edge.release ?? "–", edge.sampler ?? "–", edge.epsilon === null ? edge.reason ?? "none" : upward(edge.epsilon, 6), upward(edge.epsilon_replace_one, 6), edge.method ?? ""]),
      `Each edge's records at δ = ${exponent(p.delta)}${more(p.hidden_edges)}`) : null);
  };
}

function audited(a) {
  const right = (text) => ({ text, right: true });
  const verdict = (one) => one.refuted ? "refuted" : one.claimed === null ? "no claim" : "not refuted";
  const line = (name, one) => [name, upward(one.claimed, 4), downward(one.least, 4), verdict(one)];
  const found = a.games.map((one) => line(one.name, one));
  if (a.whole) found.push(line(`a whole run: ${whole(a.whole.releases)} releases, ${whole(a.whole.canaries)} canaries`, a.whole));
  return card("Audit", `The least ε that attacks on the release code show (ε̂), beside what is claimed: edge ${whole(a.edge)}, δ = ${exponent(a.delta)}, confidence ${short(a.confidence, 4)}. ${a.refuted ? "A claim is REFUTED." : "Nothing contradicts the claim. That is no proof of it."}`,
    table(["game", right("claimed ε"), right("ε̂ at least"), "verdict"], found, "What the audit found"));
}

export function traffic(root) {
  const tiles = make("div", { class: "tiles" }), reasons = make("div"), dropped = make("div"), trips = new Table(), nobody = make("p", { class: "quiet" }, "No edge yet.");
  const rate = new Chart({ x: SECONDS, y: { label: "updates", unit: "1/s", least: 0 }, lines: [{ label: "applied", steps: true, points: false }] });
  const refusals = make("div");
  let signature = "", refused = null;
  const over = card("Updates a second", null, rate.element);
  put(root, tiles, over, refusals, make("div", { class: "grid" }, reasons, card("Latency of each edge", "A turn: from one update of an edge to its next; the model goes out, a gradient is computed and comes back (within 5 %). The cloud writes mean round trips when the run has ended.", nobody, trips.element), dropped));
  return ({ head, traffic: f }) => {
    const total = Object.values(f.refused).reduce((sum, one) => sum + (one ?? 0), 0), lost = Object.values(f.dropped).reduce((sum, one) => sum + (one ?? 0), 0);
    renew(tiles, tile("updates", whole(head.updates), `of ${whole(head.iterations)}`), tile("updates/s", short(head.updates_per_second, 4), "whole run"), tile("refused", whole(total), f.refused_exact ? "" : "on record so far"), tile("dropped", f.refused_exact ? whole(lost) : "–", "messages that could not be read"), tile("turn", f.turns.p50 === null ? "–" : `${short(f.turns.p50, 3)} ms`, f.turns.p50 === null ? "" : `median; 99 % ${short(f.turns.p99, 3)} ms`), tile("duration", clock(head.seconds)));
    over.hidden = !f.applied.length;
    const n = Math.max(0, f.applied.length - (head.state === "ended" ? 0 : 1)); // the last stretch is not over yet
    if (n) rate.set(perSecond(f.applied.slice(0, n), f.width));
    const kinds = Object.keys(f.refused_over).sort(), now = JSON.stringify(kinds);
    if (now !== signature) {
      signature = now;
      if (refused) refused.destroy();
      refused = kinds.length ? new Chart({ x: SECONDS, y: { label: "refused", unit: "1/s", least: 0 }, lines: kinds.map((label) => ({ label, steps: true, points: false })) }) : null;
      put(refusals, refused ? card("Refusals a second, by reason", "Of one edge only the first hundred are written line by line.", refused.element) : null);
    }
    if (refused) refused.set(joined(kinds.map((key) => perSecond(f.refused_over[key].counts, f.refused_over[key].width))));
    const right = (text) => ({ text, right: true });
    renew(reasons, card("Refusals by reason", f.refused_exact ? null : "On record so far; the summary at the end has all.", Object.keys(f.refused).length ? table(["reason", right("gradients")], Object.entries(f.refused).map(([reason, count]) => [reason, whole(count)]), "Refused gradients") : make("p", { class: "quiet" }, "None.")));
    nobody.hidden = f.trips.length > 0;
    trips.element.hidden = !f.trips.length;
    trips.set([right("k"), "edge", right("turn 50 % (ms)"), right("90 %"), right("99 %"), right("link, one way (ms)"), right("round trip (ms)")],
      f.trips.map((row) => [whole(row.edge), row.edge_id ?? "", short(row.turns.p50, 3), short(row.turns.p90, 3), short(row.turns.p99, 3), short(row.asked_delay_ms), short(row.round_trip_ms)]), `Latency of each edge${more(f.hidden)}`);
    renew(dropped, Object.keys(f.dropped).length ? card("Dropped messages", null, table(["reason", right("messages")], Object.entries(f.dropped).map(([reason, count]) => [reason, whole(count)]), "Dropped messages")) : null);
  };
}

// A step for each stretch, the last one with its end.
function perSecond(counts, width) {
  const rates = counts.map((count) => count / width);
  return [[...rates, 0].map((_, i) => i * width), [...rates, rates.at(-1)]];
}

export function events(root, run) {
  const kind = make("select", { "aria-label": "Event" }), edge = make("input", { placeholder: "edge or its id", "aria-label": "Edge", maxlength: 200 }), text = make("input", { placeholder: "text", "aria-label": "Text", maxlength: 200 });
  const list = new Table(), said = make("p", { class: "note" });
  const older = make("button", { type: "button", disabled: true, onclick: () => { before = oldest; load(); } }, "Older");
  const newest = make("button", { type: "button", disabled: true, onclick: () => { before = null; load(); } }, "Newest");
  put(root, make("div", { class: "filters" }, kind, edge, text, older, newest), said, make("div", { class: "tall" }, list.element));
  let names = "", number = -1, asked = 0, timer = 0, seen = {}, shown = 0, before = null, oldest = null, again = false;
  async function load() {
    timer = 0;
    asked = Date.now();
    const mine = ++shown;
    const query = new URLSearchParams({ event: kind.value, edge: edge.value.trim(), text: text.value.trim(), before: before ?? number + 1 }); // as of what is shown, also while the page is paused
    let found;
    try {
      const answer = await fetch(`/api/runs/${encodeURIComponent(run)}/events?${query}`);
      if (!answer.ok) throw new Error(answer.statusText);
      found = await answer.json();
    } catch { again = true; return; }
    if (mine !== shown) return;
    again = !root.isConnected; // left meanwhile: asked again for whoever comes back
    if (again) return;
    const right = (title) => ({ text: title, right: true });
    const rows = found.events.map(({ number: n, event, t, time, edge: k, edge_id: id, ...rest }) => [whole(n), event ?? "", whole(t), typeof time === "number" ? time.toFixed(3) : "–", k === undefined ? id ?? "" : `${k} ${id ?? ""}`, described(rest)]);
    list.set([right("no."), "event", right("t"), right("time (s)"), "edge", "fields"], rows, "Events, newest first");
    oldest = found.events.at(-1)?.number ?? null;
    const focused = document.activeElement;
    older.disabled = !found.more;
    newest.disabled = before === null;
    if (focused === older && older.disabled) (newest.disabled ? list.element : newest).focus();
    if (focused === newest && newest.disabled) (older.disabled ? list.element : older).focus();
    said.textContent = `${whole(found.total)} events on record; searched are the last 500 updates and the last 2,000 others${found.more ? `; ${whole(rows.length)} are shown` : ""}.`;
  }
  const soon = () => { if (!timer) timer = setTimeout(load, Math.max(0, 1000 - (Date.now() - asked))); };
  for (const input of [kind, edge, text]) input.addEventListener("input", () => { asked = 0; before = null; clearTimeout(timer); timer = setTimeout(load, 200); });
  return ({ events: e }) => {
    seen = e.seen;
    const now = Object.keys(seen).join();
    if (now !== names) {
      names = now;
      const before = kind.value;
      put(kind, make("option", { value: "" }, "all events"), Object.keys(seen).map((name) => make("option", { value: name }, name)));
      kind.value = before;
    }
    if (e.number !== number || again) { number = e.number; if (before === null || again) soon(); }
  };
}

export function runHead(root, head) {
  const first = head.metrics[0], latest = head.latest.values ?? {}, done = head.iterations ? Math.min(1, head.updates / head.iterations) : 0;
  const names = { live: "live", ending: "ending", quiet: "no news", ended: head.reason ?? "ended" };
  renew(root,
    make("div", { class: "title" }, make("h1", {}, head.run), make("span", { class: `badge ${head.state}` }, names[head.state] ?? head.state),
      make("span", { class: "note" }, [what(head), `engine ${head.engine ?? "?"}`, `began ${moment(head.started)}`, head.behind ? "reading…" : null, head.resumed ? `resumed ${head.resumed}×` : null, head.unreadable ? `${whole(head.unreadable)} unreadable lines` : null].filter(Boolean).join(" · "))),
    make("progress", { max: 1, value: done, "aria-label": "updates done" }),
    make("div", { class: "tiles" },
      tile("update t", whole(head.updates), `of ${whole(head.iterations)}`),
      first ? tile(first.name, metricText(first, latest[first.name]), `best ${metricText(first, head.best)} at ${whole(head.best_at)}`) : null,
      ...head.metrics.slice(1, 3).map((metric) => tile(metric.name, metricText(metric, latest[metric.name]), head.latest.t === undefined ? "" : `at ${whole(head.latest.t)}`)),
      head.stage === null ? null : tile("stage", whole(head.stage), `ΔS ${short(head.sensitivity)} · γ ${short(head.learning_rate)}`),
      tile("updates/s", short(head.updates_per_second, 4)), tile("edges", whole(head.edges_seen), `of ${whole(head.edges)}`)),
    head.warning ? make("p", { class: "warning" }, head.warning) : null,
    ...head.failed.map((text) => make("p", { class: "warning" }, `These records cannot be shown: ${text}`)));
}

export function runs(root, choose) {
  const chosen = new Set(), lines = new Map(), list = new Table(), none = make("p", { class: "quiet" });
  const button = make("button", { type: "button", disabled: true, onclick: () => choose([...chosen]) }, "Compare");
  put(root, make("div", { class: "title" }, make("h1", {}, "Runs"), button, make("span", { class: "note" }, "Tick up to eight runs to compare them.")), none, list.element);
  // What can be clicked of a run stays the same element while its figures change.
  function lineOf(run) {
    if (!lines.has(run.run)) lines.set(run.run, {
      box: make("input", { type: "checkbox", "aria-label": `compare ${run.run}`, onchange: (event) => {
        if (event.target.checked && chosen.size >= 8) event.target.checked = false;
        else if (event.target.checked) chosen.add(run.run);
        else chosen.delete(run.run);
        button.disabled = chosen.size < 1;
      } }),
      link: Object.assign(make("a", { href: `#/run/${encodeURIComponent(run.run)}/training`, title: `engine ${run.engine ?? "?"}, began ${moment(run.started)}` }, run.run), { kept: true }),
    });
    return lines.get(run.run);
  }
  return ({ runs: found, hidden, unnamed }) => {
    const right = (text) => ({ text, right: true }), names = new Set(found.map((run) => run.run));
    for (const name of chosen) if (!names.has(name)) chosen.delete(name);
    button.disabled = chosen.size < 1;
    const rows = found.map((run) => {
      const { box, link: name } = lineOf(run), text = { live: "live", quiet: "no news", ended: run.reason ?? "ended" }[run.state];
      return [box, name, make("span", { class: `badge ${run.state}` }, text), run.metric?.name ? `${metricText(run.metric, run.final)} ${run.metric.name}` : "–", upward(run.epsilon), `${whole(run.updates)} of ${whole(run.iterations)}`, whole(run.edges), what(run)];
    });
    const odd = unnamed ? ` (${whole(unnamed)} with names of other characters than A-Z a-z 0-9 . _ -, or too long)` : "";
    none.textContent = rows.length ? "" : hidden ? `Not shown: ${whole(hidden)} runs${odd}` : "No runs yet. Start one: mapa run quickstart";
    none.hidden = rows.length > 0;
    list.element.hidden = !rows.length;
    list.set([{ text: "", label: "compare" }, "run", "state", right("result"), right("ε"), right("updates"), right("edges"), "what"], rows, hidden ? `The newest ${whole(found.length)}; not shown: ${whole(hidden)} more${odd}` : "Newest first");
  };
}

export function compare(root) {
  let axis = "t", metric = "", found = null, chart = null;
  const select = make("select", { "aria-label": "Metric", onchange: () => { metric = select.value; show(); } });
  const buttons = [["t", "over updates"], ["seconds", "over seconds"]].map(([key, text]) => make("button", { type: "button", onclick: () => { axis = key; show(); } }, text));
  const place = make("div"), results = make("div");
  put(root, make("div", { class: "title" }, make("h1", {}, "Compare")), make("div", { class: "filters" }, select, buttons), place, results);
  const metrics = () => [...new Map(found.flatMap((run) => run.head.metrics).map((one) => [one.name, one])).values()];
  function show() {
    const timed = found.every((run) => run.head.timed), about = metrics().find((one) => one.name === metric);
    if (!timed) axis = "t";
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String((axis === "seconds") === (i === 1))));
    buttons[1].disabled = !timed;
    buttons[1].title = timed ? "" : NO_TIMES;
    if (chart) chart.destroy();
    const text = (v) => (about?.share ? `${(v * 100).toFixed(2)} %` : short(v, 7));
    chart = new Chart({ x: axis === "t" ? T : SECONDS, y: { label: metric, share: about?.share, text }, lines: found.map((run) => ({ label: run.head.run })) }, 360);
    put(place, card(`${metric} ${axis === "t" ? "over updates" : "over seconds"}`, null, chart.element));
    draw();
  }
  function draw() {
    chart.set(joined(found.map((run) => [run.training.curves[metric]?.[axis] ?? [], run.training.curves[metric]?.value ?? []])));
    const right = (title) => ({ text: title, right: true }), about = metrics().find((one) => one.name === metric);
    const rows = found.map(({ head, privacy: p }) => [make("a", { href: `#/run/${encodeURIComponent(head.run)}/training` }, head.run), make("span", { class: `badge ${head.state}` }, head.reason ?? head.state), what(head), whole(head.edges), whole(head.updates), metricText(about, head.latest.values?.[metric]), metricText(head.metrics[0], head.best), upward(p.epsilon), short(head.updates_per_second, 4)]);
    renew(results, table(["run", "state", "what", right("edges"), right("updates"), right(`last ${metric}`), right(`best ${found[0]?.head.metrics[0]?.name ?? ""}`), right("ε"), right("updates/s")], rows, "The runs side by side"));
  }
  return ({ runs: now }) => {
    found = now;
    const names = metrics().map((one) => one.name);
    if (chart && names.join() === [...select.options].map((one) => one.value).join()) return draw();
    if (!names.includes(metric)) metric = names[0] ?? "";
    put(select, names.map((name) => make("option", { value: name, selected: name === metric }, name)));
    show();
  };
}

// Algorithm, model and data of a run, in a few words.
function what(run) {
  return `${run.algorithm ?? "?"} · ${run.model ?? "?"} on ${run.data ?? "?"}`;
}
