// An edge in plain Node.js, written from docs/protocol.md: node edge.mjs HOST:PORT RUN EDGE-ID STATE-FILE
// It trains a logistic regression on made-up rows, clipped and noised. One process a state file; it keeps no budget.
import { randomBytes } from "node:crypto";
import { closeSync, existsSync, fsyncSync, openSync, readFileSync, renameSync, writeSync } from "node:fs";
import { connect as dial } from "node:net";
import { dirname } from "node:path";

const [broker = "", run, id, file] = process.argv.slice(2), nonce = randomBytes(8).toString("hex");
const ours = (kind) => `mapa/v1/${run}/edge/${id}/${kind}`, cloud = `mapa/v1/${run}/cloud`, halts = `mapa/v1/${run}/halt`;
const fail = (text) => { console.error(text); process.exit(2); };
if (!file) fail("usage: node edge.mjs HOST:PORT RUN EDGE-ID STATE-FILE");

// --- msgpack, as far as cold messages need it: integers are BigInts, floats are numbers
function pack(value) {
  const wide = (tag, write) => { const bytes = Buffer.alloc(9, tag); write(bytes); return bytes; };
  if (value === null) return Buffer.from([0xc0]);
  if (typeof value === "bigint") return wide(0xcf, (bytes) => bytes.writeBigUInt64BE(value, 1));
  if (typeof value === "string") return Buffer.concat([Buffer.from([0xd9, Buffer.byteLength(value)]), Buffer.from(value)]);
  const items = Object.entries(value).flat().map(pack);
  return Buffer.concat([Buffer.from([0x80 | (items.length / 2)]), ...items]);
}
function unpack(buffer) {
  let at = 0;
  const skip = (n) => { if ((at += Number(n)) > buffer.length) throw new Error("cut short"); return at - Number(n); };
  const uint = (n) => BigInt(`0x${buffer.toString("hex", skip(n), at)}`), text = (n) => buffer.toString("utf8", skip(n), at);
  const list = (n) => Array.from({ length: Number(n) }, item);
  const map = (n) => Object.fromEntries(Array.from({ length: Number(n) }, () => [item(), item()]));
  const by = { 0xc0: () => null, 0xc2: () => false, 0xc3: () => true, 0xca: () => buffer.readFloatBE(skip(4)),
    0xcb: () => buffer.readDoubleBE(skip(8)), 0xd9: () => text(uint(1)), 0xda: () => text(uint(2)), 0xdc: () => list(uint(2)),
    0xde: () => map(uint(2)) };
  function item() {
    const tag = buffer[skip(1)];
    if (tag < 0x80 || tag >= 0xe0) return BigInt.asIntN(8, BigInt(tag));
    if (tag < 0xc0) return [map, list, text, text][(tag >> 4) - 8](tag & (tag < 0xa0 ? 15 : 31));
    if (tag >= 0xcc && tag <= 0xcf) return uint(1 << (tag - 0xcc));
    if (tag >= 0xd0 && tag <= 0xd3) return BigInt.asIntN(8 << (tag - 0xd0), uint(1 << (tag - 0xd0)));
    if (!by[tag]) throw new Error(`type ${tag} has no place here`);
    return by[tag]();
  }
  return item();
}

// --- MQTT 3.1.1: clean session, QoS 0 and 1, a last will, a connection that comes back
let socket, up = false, done = false, packetId = 0, backoff = 250;
const u16 = (n) => Buffer.from([n >> 8, n & 255]), field = (x) => Buffer.concat([u16(Buffer.byteLength(x)), Buffer.from(x)]);
const nextId = () => u16((packetId = (packetId % 65535) + 1)), farewell = (reason) => pack({ v: 1n, kind: "leave", reason, nonce });
function send(first, ...parts) {
  const body = Buffer.concat(parts), head = [first];
  for (let n = body.length, more = true; more; n >>= 7) head.push((n & 127) | ((more = n > 127) ? 128 : 0));
  socket.write(Buffer.concat([Buffer.from(head), body]));
}
const publish = (kind, bytes, qos) => up && send(0x30 | (qos << 1), field(ours(kind)), qos ? nextId() : Buffer.of(), bytes);
function connect() {
  let data = Buffer.of();
  const colon = broker.lastIndexOf(":"), will = farewell("lost"), qos = Buffer.of(1);
  socket = dial(Number(broker.slice(colon + 1)), broker.slice(0, colon)).setNoDelay().setTimeout(45_000, () => socket.destroy());
  socket.on("connect", () => send(0x10, field("MQTT"), Buffer.of(4, 0x0e), u16(30), field(`${run}:${id}`), field(ours("will")), field(will)));
  socket.on("error", (error) => console.error(`${error.message}; connecting again`)).on("close", () => {
    up = false;
    if (!done) setTimeout(connect, backoff * (0.5 + Math.random() / 2));
    backoff = Math.min(2 * backoff, 8000);
  }).on("data", (chunk) => {
    for (data = Buffer.concat([data, chunk]); ; ) {
      let size = 0, at = 1, more = true;
      for (; more && at < data.length; at++) { size += (data[at] & 127) * 128 ** (at - 1); more = data[at] > 127; }
      if (more || data.length < at + size) return;
      const [first, body] = [data[0], data.subarray(at, at + size)];
      data = data.subarray(at + size);
      if (first >> 4 === 2 && body[1]) fail(`the broker refuses the connection, code ${body[1]}`);
      else if (first >> 4 === 2) send(0x82, nextId(), field(ours("model")), Buffer.of(0), ...[ours("welcome"), cloud, halts].flatMap((t) => [field(t), qos]));
      else if (first >> 4 === 9) { up = true; backoff = 250; greet(); }
      else if (first >> 4 === 3 && !done) delivered(first, body);
    }
  });
}
function delivered(first, body) {
  const end = 2 + body.readUInt16BE(0), topic = body.toString("utf8", 2, end), qos = (first >> 1) & 3;
  if (qos) send(0x40, body.subarray(end, end + 2));
  if ((first & 1) && topic !== cloud && topic !== halts) return; // retained, so of any age
  try { heard(topic, body.subarray(end + (qos ? 2 : 0))); } catch (error) { console.error(`dropped, ${topic}: ${error.message}`); }
}
setInterval(() => up && send(0xc0, Buffer.of()), 15_000);

// --- the ledger: a sequence is on disk, with its bytes, before they leave
const book = existsSync(file) ? JSON.parse(readFileSync(file, "utf8")) : {}, ledger = (book[run] ??= { sequence: 0, index: null, outbox: "" });
function save() {
  const sync = (path, how, text) => { const f = openSync(path, how); if (text) writeSync(f, text); fsyncSync(f); closeSync(f); };
  sync(`${file}.new`, "w", JSON.stringify(book)); renameSync(`${file}.new`, file); sync(dirname(file), "r");
}

// --- one release: a Poisson sample, each gradient clipped to bΔS/2, their sum over b, noise of deviation zΔS/2, λx
const uniform = () => (Number(randomBytes(8).readBigUInt64BE() >> 12n) + 0.5) / 2 ** 52, inputs = { "mnist-5k": 784, mnist: 784, usps: 256 };
const normal = () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()); // Box–Muller
const known = ({ model, data, links, privacy: p, work }) => model.name === "lr" && data.set in inputs && data.sampler === "poisson" && !links.length
  && (!work.private || (p.noise === "gaussian" && p.clipping === "per-sample" && p.scope === "all" && p.total_epsilon === null));
const madeUp = (pixels, n) => Array.from({ length: n }, (_, i) => { // what the positive class shows is brighter
  const a = [...Array.from({ length: pixels }, () => Math.random() * (i % 2 ? 1 : 0.8)), 1];
  return { a, y: i % 2 ? 1 : -1, norm: Math.hypot(...a) };
});
let rows;
function release(x, deltaS, { batch_size, privacy, model, work }) {
  const b = Number(batch_size), bound = (b * deltaS) / 2, g = new Float64Array(x.length);
  if (work.private && !(bound >= 1e-9 && bound <= 1e9)) throw new Error(`clipping bound ${bound}`);
  for (const { a, y, norm } of rows) if (uniform() < b / rows.length) {
    const d = (Math.tanh(a.reduce((sum, value, i) => sum + value * x[i], 0) / 2) - y) / 2; // of log(1 + exp(−y s)) by s
    const weight = (d * (work.private ? bound / Math.max(bound, Math.abs(d) * norm) : 1)) / b;
    a.forEach((value, i) => { g[i] += weight * value; });
  }
  const noise = work.private ? () => (privacy.noise_multiplier[0] * deltaS * normal()) / 2 : () => 0;
  return Float32Array.from(g, (value, i) => value + noise() + model.regularization * x[i]);
}

// --- the conversation: an edge owes a hello, or one gradient; a model counts if it acknowledges what is `awaited`
let seen, life, online, terms, early, halt, timer, number = 0n, answered = 0n, haltAfter = 0n, awaited = 0n, tries = 0, greeting = true;
let owed = ledger.outbox && Buffer.from(ledger.outbox, "base64"); // the gradient of the last sequence, not yet acknowledged
function end(code, text, reason) {
  console.log(text); clearTimeout(timer);
  if (reason) publish("leave", farewell(reason), 1);
  if (!up) process.exit(code);
  done = true; send(0xe0); socket.end(() => process.exit(code));
}
function owe(what) { if (what) publish("gradient", what, 0); clearTimeout(timer); // before the first welcome 5 s
  timer = setTimeout(again, 1000 * Math.min(60, (terms?.scenario.testbed.resend_after ?? 5) * 2 ** tries)); }
function again() { tries++; if (ended() && tries >= 3) over(); else if (owed && !greeting) owe(owed); else hello(); }
function greet() { tries = 0; greeting = true; hello(); }
function hello() { // noise as the scenario says; nobody to say it to before the first presence
  if (life !== undefined) publish("hello", pack({ v: 1n, kind: "hello", noise: null, epsilon: null, noise_multiplier: null, nonce, number: ++number,
    last_sequence: BigInt(ledger.sequence), index: ledger.index === null ? null : BigInt(ledger.index), incarnation: life }), 1);
  owe();
}
const ended = () => halt && seen && !seen.online && seen.over && seen.incarnation === halt.incarnation;
const concerns = () => ended() && [undefined, halt.incarnation].includes(terms?.incarnation ?? online);
const over = () => end(0, `the run has ended: ${halt.reason} after ${halt.updates} updates`);
const dealt = (w) => JSON.stringify([w.index, w.edges, w.seed, w.scenario], (_, value) => (typeof value === "bigint" ? `${value}` : value));
const on = { [cloud]: { presence(m) {
  const before = seen; seen = m; life = m.incarnation;
  if (m.online) online = life;
  if (m.online ? !before?.online || before.nonce !== m.nonce : false) greet(); else if (!m.online && concerns()) over();
} }, [halts]: { halt(m) {
  const asked = greeting && halt?.incarnation === m.incarnation; halt = m;
  if (concerns()) over(); else if (!asked) { haltAfter = number; greet(); }
} }, [ours("welcome")]: { refuse(m) {
  if (m.nonce === null) { if (m.reason === "stranger" && !greeting) greet(); return; } // `full`: the same bytes later
  if (m.nonce !== nonce || m.number !== number || m.number <= answered) return;
  if (m.reason === "incarnation") { life = m.incarnation; greet(); } else end(m.reason === "halted" ? 0 : 2, `refused, ${m.reason}: ${m.detail}`);
}, welcome(m) {
  if (m.nonce !== nonce || m.number <= answered || m.number > number || m.last_sequence > BigInt(ledger.sequence)) return;
  if (terms ? dealt(terms) !== dealt(m) : !known(m.scenario)) return end(2, "this edge cannot follow the welcome", "refused");
  answered = m.number; tries = 0; greeting = false; if (m.number > haltAfter) halt = undefined;
  rows ??= madeUp(inputs[m.scenario.data.set], Math.max(300, Number(m.scenario.batch_size)));
  terms = m; ledger.index = Number(m.index);
  if (owed && (owed.readBigUInt64BE(23) !== m.incarnation || m.last_sequence >= BigInt(ledger.sequence))) owed = null; // the debit stays
  awaited = owed ? BigInt(ledger.sequence) : m.last_sequence; owe(owed);
  if (early) { const bytes = early; early = null; model(bytes); }
} } };
function model(bytes) {
  if (greeting) { early = bytes; return; } // it may overtake its welcome
  const N = rows[0].a.length, x = new Float32Array(new Uint8Array(bytes.subarray(40)).buffer), deltaS = bytes.readDoubleBE(32);
  if (bytes.length !== 40 + 4 * N || bytes.toString("hex", 0, 5) !== "9601a16dcf" || !x.every(Number.isFinite)) throw new Error("not a model");
  const [incarnation, acknowledged] = [bytes.readBigUInt64BE(14), bytes.readBigUInt64BE(23)];
  if (incarnation !== terms.incarnation || acknowledged < awaited || acknowledged > BigInt(ledger.sequence)) return;
  const g = release(x, deltaS, terms.scenario), head = Buffer.from(bytes.subarray(0, 40)); // ΔS stays as it was sent
  head.write("g", 3); head.writeBigUInt64BE(BigInt(++ledger.sequence), 5); bytes.copy(head, 14, 5, 13); head.writeBigUInt64BE(incarnation, 23);
  owed = Buffer.concat([head, Buffer.from(g.buffer)]); ledger.outbox = owed.toString("base64"); save();
  awaited = BigInt(ledger.sequence); tries = 0; owe(owed);
}
function heard(topic, bytes) {
  if (topic === ours("model")) return model(bytes);
  const m = bytes.length ? unpack(bytes) : {}; // an empty halt says that there is none
  if (bytes.length && (m.v !== 1n || typeof m.incarnation !== "bigint" || !on[topic]?.[m.kind])) throw new Error("no message of version 1");
  if (bytes.length) on[topic][m.kind](m);
}
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => end(0, "left: shutdown", "shutdown"));
connect();
