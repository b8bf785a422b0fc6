// An edge in plain Node.js, written from docs/protocol.md: node edge.mjs HOST:PORT RUN EDGE-ID STATE-FILE
// It trains a logistic regression on made-up rows, clipped and noised. One process a state file; it keeps no budget.
import { randomBytes } from "node:crypto";
import fs from "node:fs";
import net from "node:net";
import path from "node:path";
const [broker = "", run, id, file] = process.argv.slice(2), nonce = randomBytes(8).toString("hex");
const fail = (text) => { console.error(text); process.exit(2); }, [, host, port] = /^(.+):(\d+)$/.exec(broker) ?? [];
if (!file || !port) fail("usage: node edge.mjs HOST:PORT RUN EDGE-ID STATE-FILE");
const ours = (kind) => `mapa/v1/${run}/edge/${id}/${kind}`, cloud = `mapa/v1/${run}/cloud`, halts = `mapa/v1/${run}/halt`;
// --- msgpack, as far as cold messages need it: integers are BigInts, floats are numbers
function pack(value) {
  if (value === null) return Buffer.of(0xc0);
  if (typeof value === "bigint") { const bytes = Buffer.alloc(9, 0xcf); bytes.writeBigUInt64BE(value, 1); return bytes; }
  if (typeof value === "string") return Buffer.concat([Buffer.of(0xd9, Buffer.byteLength(value)), Buffer.from(value)]);
  return Buffer.concat([Buffer.of(0x80 | Object.keys(value).length), ...Object.entries(value).flat().map(pack)]);
}
function unpack(buffer, at = 0) {
  const skip = (n) => { if ((at += Number(n)) > buffer.length) throw new Error("cut short"); return at - Number(n); };
  const uint = (n) => BigInt(`0x${buffer.toString("hex", skip(n), at)}`), text = (n) => buffer.toString("utf8", skip(n), at);
  const list = (n, each = item) => Array.from({ length: Number(n) }, each), map = (n) => Object.fromEntries(list(n, () => [item(), item()]));
  const by = { 0xc0: () => null, 0xc2: () => false, 0xc3: () => true, 0xca: () => buffer.readFloatBE(skip(4)), 0xde: () => map(uint(2)),
    0xcb: () => buffer.readDoubleBE(skip(8)), 0xd9: () => text(uint(1)), 0xda: () => text(uint(2)), 0xdc: () => list(uint(2)) };
  function item() { // a type that `by` lacks is no function: an error, as all that is malformed
    const tag = buffer[skip(1)], width = 1 << (tag & 3);
    if (tag < 0x80 || tag >= 0xe0) return BigInt.asIntN(8, BigInt(tag));
    if (tag < 0xc0) return [map, list, text, text][(tag >> 4) - 8](tag & (tag < 0xa0 ? 15 : 31));
    return tag < 0xcc || tag > 0xd3 ? by[tag]() : tag < 0xd0 ? uint(width) : BigInt.asIntN(8 * width, uint(width));
  }
  return item();
}
// --- MQTT 3.1.1: clean session, QoS 0 and 1, a last will, a connection that comes back
let socket, up = false, done = false, packetId = 0, backoff = 250;
const u16 = (n) => Buffer.of(n >> 8, n & 255), field = (x) => Buffer.concat([u16(Buffer.byteLength(x)), Buffer.from(x)]);
const nextId = () => u16((packetId = (packetId % 65535) + 1)), farewell = (reason) => pack({ v: 1n, kind: "leave", reason, nonce });
const publish = (kind, bytes, qos) => up && send(0x30 | (qos << 1), field(ours(kind)), qos ? nextId() : Buffer.of(), bytes);
function send(first, ...parts) {
  const body = Buffer.concat(parts), head = [first];
  for (let n = body.length, more = true; more; n >>= 7) head.push((n & 127) | ((more = n > 127) ? 128 : 0));
  socket.write(Buffer.concat([Buffer.from(head), body]));
}
function connect(data = Buffer.of()) {
  const introduction = [field("MQTT"), Buffer.of(4, 0x0e), u16(30), field(`${run}:${id}`), field(ours("will")), field(farewell("lost"))];
  socket = net.connect(Number(port), host, () => send(0x10, ...introduction)).setNoDelay().setTimeout(45_000, () => socket.destroy());
  socket.on("error", (error) => console.error(`${error.message}; connecting again`)).on("close", () => {
    up = false; if (!done) setTimeout(connect, backoff * (0.5 + Math.random() / 2)); backoff = Math.min(2 * backoff, 8000);
  }).on("data", (chunk) => {
    for (data = Buffer.concat([data, chunk]); ;) {
      let size = 0, at = 1, more = true;
      for (; more && at < data.length; at++) { size += (data[at] & 127) * 128 ** (at - 1); more = data[at] > 127; }
      if (more || data.length < at + size) return;
      packet(data[0], data.subarray(at, at + size)); data = data.subarray(at + size);
    }
  });
}
function packet(first, body) {
  const type = first >> 4, qos = (first >> 1) & 3, end = type === 3 ? 2 + body.readUInt16BE(0) : 0, topic = body.toString("utf8", 2, end);
  if (type === 2 && body[1]) fail(`the broker refuses the connection, code ${body[1]}`);
  if (type === 2) send(0x82, nextId(), ...[ours("model"), ours("welcome"), cloud, halts].flatMap((t, i) => [field(t), Buffer.of(i && 1)]));
  if (type === 9) { up = true; backoff = 250; greet(); } else if (type === 3 && qos) send(0x40, body.subarray(end, end + 2));
  if (type !== 3 || done || ((first & 1) && topic !== cloud && topic !== halts)) return; // retained elsewhere: of any age
  try { heard(topic, body.subarray(end + (qos ? 2 : 0))); } catch (error) { console.error(`dropped, ${topic}: ${error.message}`); }
}
// --- the ledger: a sequence is on disk, with its bytes, before they leave
const book = fs.existsSync(file) ? JSON.parse(fs.readFileSync(file)) : {}, ledger = (book[run] ??= { sequence: 0, index: null, outbox: "" });
function save() { // the new file, then its name
  const sync = (name, how, act) => { const f = fs.openSync(name, how); act(f); fs.fsyncSync(f); fs.closeSync(f); };
  sync(`${file}.new`, "w", (f) => fs.writeSync(f, JSON.stringify(book))); sync(path.dirname(file), "r", () => fs.renameSync(`${file}.new`, file));
}
// --- one release: a Poisson sample, each gradient clipped to bΔS/2, their sum over b, noise of deviation zΔS/2, λx
const uniform = () => (Number(randomBytes(8).readBigUInt64BE() >> 12n) + 0.5) / 2 ** 52; // in (0, 1)
const normal = () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()); // Box–Muller
const inputs = { "mnist-5k": 784, mnist: 784, usps: 256 }, normed = (a, y) => ({ a, y, norm: Math.hypot(...a) }); // pixels, then the constant 1
const row = (pixels, y) => normed(Array.from({ length: pixels + 1 }, (_, j) => (j < pixels ? (Math.random() * (y + 9)) / 10 : 1)), y);
const known = ({ batch_size, model, data, links, privacy: p, work, testbed }) => model?.name === "lr" && model.regularization >= 0 && batch_size > 0
  && Object.hasOwn(inputs, data?.set) && data.sampler === "poisson" && !links?.length && testbed?.resend_after >= 0.05 && (work?.private === false
  || (work?.private && p?.noise === "gaussian" && p.noise_multiplier?.[0] >= 1e-9 && p.clipping === "per-sample" && p.total_epsilon === null));
function release(x, deltaS, { batch_size, privacy, model: { regularization }, work }) {
  const b = Number(batch_size), bound = work.private ? (b * deltaS) / 2 : Infinity, g = new Float64Array(x.length);
  if (work.private && !(bound >= 1e-9 && bound <= 1e9)) throw new Error(`clipping bound ${bound}`);
  for (const { a, y, norm } of rows) if (uniform() < b / rows.length) {
    const d = (Math.tanh(a.reduce((sum, value, i) => sum + value * x[i], 0) / 2) - y) / 2; // of log(1 + exp(−y s)) by s
    a.forEach((value, i) => { g[i] += (value * d * Math.min(1, bound / (Math.abs(d) * norm))) / b; });
  }
  return g.map((value, i) => value + (work.private ? (privacy.noise_multiplier[0] * deltaS * normal()) / 2 : 0) + regularization * x[i]);
}
// --- the conversation: an edge owes a hello, or one gradient; a model counts if it acknowledges what is `awaited`
let rows, seen, life, online, terms, early, halt, timer, number = 0n, answered = 0n, haltAfter = 0n, awaited = 0n, tries = 0, greeting = true;
let owed = ledger.outbox && Buffer.from(ledger.outbox, "base64"); // the gradient of the last sequence, not yet acknowledged
function end(code, text, reason) {
  console.log(text); clearTimeout(timer); done = true; if (!up) process.exit(code);
  if (reason) publish("leave", farewell(reason), 1); send(0xe0); socket.end(() => process.exit(code));
}
function owe(gradient) {
  if (gradient) publish("gradient", gradient, 0);
  clearTimeout(timer); timer = setTimeout(again, 1000 * Math.min(60, (terms?.scenario.testbed.resend_after ?? 5) * 2 ** tries));
}
function again() { tries++; if (ended() && tries >= 3) over(); else if (owed && !greeting) owe(owed); else hello(); }
function greet() { tries = 0; greeting = true; hello(); }
function hello() { // nil: noise as the scenario says. Before the first presence there is nobody to greet.
  const held = { last_sequence: BigInt(ledger.sequence), index: ledger.index && BigInt(ledger.index), nonce, incarnation: life };
  const words = () => ({ v: 1n, kind: "hello", noise: null, parameters: {}, ...held, number: ++number });
  if (life !== undefined) publish("hello", pack(words()), 1);
  owe();
}
const over = () => end(0, `the run has ended: ${halt.reason} after ${halt.updates} updates`);
const ended = () => halt && seen && !seen.online && seen.over && seen.incarnation === halt.incarnation;
const concerns = () => ended() && [undefined, halt.incarnation].includes(terms?.incarnation ?? online);
const dealt = (w) => JSON.stringify([w.index, w.edges, w.seed, w.scenario], (_, v) => (typeof v === "bigint" ? `${v}` : v));
function presence(m) {
  const another = !seen?.online || seen.nonce !== m.nonce; seen = m; life = m.incarnation;
  if (m.online) { online = life; if (another) greet(); } else if (concerns()) over();
}
function halted(m) {
  const asked = greeting && halt?.incarnation === m.incarnation; halt = m;
  if (concerns()) over(); else if (!asked) { haltAfter = number; greet(); }
}
function refused(m) {
  if (m.nonce === null && m.reason === "stranger" && !greeting) greet(); // and at `full` the same bytes later
  if (m.nonce !== nonce || m.number !== number || m.number <= answered) return;
  if (m.reason === "incarnation") { life = m.incarnation; greet(); } else end(m.reason === "halted" ? 0 : 2, `refused, ${m.reason}: ${m.detail}`);
}
function welcomed(m) {
  if (m.nonce !== nonce || m.number <= answered || m.number > number || m.last_sequence > BigInt(ledger.sequence)) return;
  if (terms ? dealt(terms) !== dealt(m) : !known(m.scenario)) return end(2, "this edge cannot follow the welcome", "refused");
  rows ??= Array.from({ length: 300 + Number(m.scenario.batch_size) }, (_, i) => row(inputs[m.scenario.data.set], i % 2 ? 1 : -1));
  terms = m; answered = m.number; tries = 0; greeting = false; ledger.index = `${m.index}`; if (answered > haltAfter) halt = undefined;
  if (owed && (owed.readBigUInt64BE(23) !== m.incarnation || m.last_sequence >= BigInt(ledger.sequence))) owed = null; // the debit stays
  awaited = owed ? BigInt(ledger.sequence) : m.last_sequence; owe(owed);
  if (early) { const bytes = early; early = null; model(bytes); }
}
function model(bytes) {
  if (greeting) { early = bytes; return; } // it may overtake its welcome
  if (bytes.length !== 40 + 4 * rows[0].a.length || bytes.toString("hex", 0, 5) !== "9601a16dcf") throw new Error("no model of this run");
  const [incarnation, acknowledged] = [14, 23].map((at) => bytes.readBigUInt64BE(at)), x = new Float32Array(Uint8Array.from(bytes.subarray(40)).buffer);
  if (incarnation !== terms.incarnation || acknowledged < awaited || acknowledged > BigInt(ledger.sequence) || !x.every(Number.isFinite)) return;
  const g = Buffer.from(Float32Array.from(release(x, bytes.readDoubleBE(32), terms.scenario)).buffer), mark = Buffer.from("9601a167", "hex");
  awaited = BigInt(++ledger.sequence); tries = 0; // t and ΔS go back as they came
  owed = Buffer.concat([mark, pack(awaited), bytes.subarray(4, 13), pack(incarnation), bytes.subarray(31, 40), g]);
  ledger.outbox = owed.toString("base64"); save(); owe(owed); // debited, then published
}
const hear = { [`${cloud} presence`]: presence, [`${halts} halt`]: halted, [`${ours("welcome")} refuse`]: refused, [`${ours("welcome")} welcome`]: welcomed };
function heard(topic, bytes) {
  if (topic === ours("model") || !bytes.length) return bytes.length ? model(bytes) : null; // empty: no halt is kept
  const m = unpack(bytes);
  if (m.v === 1n && typeof m.incarnation === "bigint") hear[`${topic} ${m.kind}`](m);
}
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => end(0, "left: shutdown", "shutdown"));
connect(); setInterval(() => up && send(0xc0), 15_000); // keepalive is 30 s
