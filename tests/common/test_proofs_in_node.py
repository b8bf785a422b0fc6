"""The proofs of docs/protocol.md, written once more from that page in plain Node: the same bytes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent.parent / "golden" / "v1"

PROGRAM = r"""
import * as c from "node:crypto";
import { readFileSync } from "node:fs";
const folder = process.argv[2], golden = JSON.parse(readFileSync(folder + "/proofs.json"));
const hex = text => Buffer.from(text, "hex"), number = (n, bytes) => {
  const b = Buffer.alloc(8); b.writeBigUInt64BE(BigInt(n)); return b.subarray(8 - bytes); };
const zero = Buffer.alloc(1), hmac = (key, text) => c.createHmac("sha256", key).update(text).digest();
const sha = bytes => c.createHash("sha256").update(bytes).digest();
const names = { hello: "edge", welcome: "cloud", gradient: "edge", model: "cloud" };
const own = side => c.createPrivateKey({ format: "der", type: "pkcs8",
  key: Buffer.concat([hex("302e020100300506032b656e04220420"), hex(golden.X25519[side])]) });
const SPKI = hex("302a300506032b656e032100");
const publicOf = side => c.createPublicKey(own(side)).export({ format: "der", type: "spki" }).subarray(12);
const certificate = side => new c.X509Certificate(golden.pem[side + " certificate"]);
const check = (kind, right) => { if (!right) { console.error(kind); process.exit(1); } };

const [edge, cloud] = ["edge", "cloud"].map(publicOf);
const shared = c.diffieHellman({ privateKey: own("edge"),
  publicKey: c.createPublicKey({ format: "der", type: "spki", key: Buffer.concat([SPKI, cloud]) }) });
const order = Buffer.compare(edge, cloud) < 0 ? [edge, cloud] : [cloud, edge];
const pair = hmac(Buffer.concat([Buffer.from("mapa/v1 pair"), zero, ...order]), shared);
const info = Buffer.concat([Buffer.from("mapa/v1 session"), zero, number(6, 2), Buffer.from("golden"),
  number(6, 2), Buffer.from("edge-1"), number("8877665544332211", 8), Buffer.alloc(8),
  hex(golden.nonces.edge), hex(golden.nonces.cloud),
  sha(certificate("edge").raw), sha(certificate("cloud").raw)]);
const keyOf = way => hmac(pair, Buffer.concat([info, Buffer.from(way), zero, Buffer.from([1])]));

for (const kind of ["hello", "welcome"]) {
  const side = names[kind], body = readFileSync(`${folder}/${kind}.msgpack`);
  const topic = Buffer.from(`mapa/v1/golden/edge/edge-1/${kind}`), der = certificate(side).raw;
  const [nonce, key] = [hex(golden.nonces[side]), publicOf(side)];
  const said = Buffer.concat([Buffer.from("mapa/v1 signed"), zero, number(topic.length, 2), number(der.length, 2),
    topic, nonce, key, der, body]);
  const signature = c.sign(null, said, golden.pem[side + " key"]);
  const proven = Buffer.concat([body, der, nonce, key, signature, number(der.length, 2), hex("c1736967")]);
  check(kind, proven.equals(hex(golden.proven[kind])));
}
for (const kind of ["gradient", "model"]) {
  const body = readFileSync(`${folder}/${kind}.msgpack`);
  const cipher = c.createCipheriv("aes-256-gcm", keyOf(kind + "s"), Buffer.concat([Buffer.alloc(4), number(1, 8)]));
  cipher.setAAD(body); cipher.final();
  const seal = Buffer.concat([hex(golden.nonces.edge), number(1, 8), cipher.getAuthTag()]);
  check(kind, Buffer.concat([body, seal]).equals(hex(golden.proven[kind])));
}
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on PATH (Debian: apt install nodejs)")
def test_another_language_makes_the_same_proofs_of_the_golden_messages(tmp_path: Path) -> None:
    program = tmp_path / "proofs.mjs"
    program.write_text(PROGRAM)
    done = subprocess.run(["node", program, GOLDEN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
