"""Authorities, one-time tokens and the register: who gets a certificate, and who no longer has one."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import stat
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from common.errors import BrokerUnavailableError, ConfigurationError
from mapa.authority import Authority, Role, new_key, signing_request
from mapa.broker_files import write_revocations
from mapa.commands import certs
from mapa.enrolment import EnrolmentServer, Token, enrol
from tests.program_support import PATIENCE

HOUR = timedelta(hours=1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", ["vm.example.org", "192.0.2.7"])


def request(name: str = "north") -> bytes:
    return signing_request(new_key(), name)


def with_a_broken_signature(asked: bytes) -> bytes:
    """Return the request with its last byte, of the signature, changed."""
    content = bytearray(x509.load_pem_x509_csr(asked).public_bytes(serialization.Encoding.DER))
    content[-1] ^= 1
    return x509.load_der_x509_csr(bytes(content)).public_bytes(serialization.Encoding.PEM)


def of_another_version(asked: bytes) -> bytes:
    """Return the request with a version that no standard has, as PEM by hand: cryptography reads none such."""
    content = x509.load_pem_x509_csr(asked).public_bytes(serialization.Encoding.DER)
    lines = base64.encodebytes(content.replace(b"\x02\x01\x00", b"\x02\x01\x04", 1)).decode()
    name = "CERTIFICATE REQUEST"
    return f"-----BEGIN {name}-----\n{lines}-----END {name}-----\n".encode()


def common_name(certificate: bytes) -> str:
    return x509.load_pem_x509_certificate(certificate).subject.rfc4514_string()


def test_a_token_signs_one_key_which_may_ask_again(authority: Authority) -> None:
    secret, _ = authority.invite("north", 0, HOUR)
    first = request()
    assert common_name(authority.enrol("north", secret, first)) == "CN=north"
    assert common_name(authority.enrol("north", secret, first)) == "CN=north"  # its answer was lost
    with pytest.raises(ConfigurationError, match="used already"):
        authority.enrol("north", secret, request())
    states = [entry.state(datetime.now(UTC)) for entry in authority.register().entries]
    assert states == ["revoked", "valid"]


@pytest.mark.parametrize(
    "case", ["another name", "another secret", "expired", "revoked", "replaced", "used, then revoked"]
)
def test_a_token_that_is_not_this_edges_valid_one_signs_nothing(authority: Authority, case: str) -> None:
    secret, _ = authority.invite("north", 0, timedelta(seconds=-1) if case == "expired" else HOUR)
    name, asked = "north", request()
    match case:
        case "another name":
            name = "south"
        case "another secret":
            secret = secret[:-1] + ("A" if secret[-1] != "A" else "B")
        case "revoked":
            authority.revoke("north")
        case "replaced":
            authority.invite("north", 0, HOUR)
        case "used, then revoked":
            authority.enrol(name, secret, asked)
            authority.revoke("north")
    entries = authority.register().entries
    with pytest.raises(ConfigurationError, match="token: unknown, expired"):
        authority.enrol(name, secret, asked)
    assert authority.register().entries == entries


def test_the_name_and_the_role_are_the_tokens_whatever_the_request_asks_for(authority: Authority) -> None:
    secret, _ = authority.invite("north", 0, HOUR)
    certificate = authority.enrol("north", secret, request("cloud"))
    assert common_name(certificate) == "CN=north"
    read = x509.load_pem_x509_certificate(certificate)
    edges = x509.load_pem_x509_certificate((authority.folder / "edges.pem").read_bytes())
    read.verify_directly_issued_by(edges)


@pytest.mark.parametrize("kind", ["noise", "too large", "another kind of key", "forged", "a version"])
def test_a_malformed_request_is_refused_and_the_token_stays_valid(authority: Authority, kind: str) -> None:
    secret, _ = authority.invite("north", 0, HOUR)
    good = request()
    bad = {
        "noise": b"\xff\x00 no request",
        "too large": good + b" " * 5000,
        "another kind of key": x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM),
        "forged": with_a_broken_signature(good),
        "a version": of_another_version(good),
    }[kind]
    with pytest.raises(ConfigurationError, match="request"):
        authority.enrol("north", secret, bad)
    authority.enrol("north", secret, good)


@pytest.mark.parametrize("name", ["cloud", "broker", "enrolment", "a/b", "..", "", "x" * 65, "ö"])
def test_a_name_of_a_service_or_no_name_is_refused(authority: Authority, name: str) -> None:
    before = authority.register()
    with pytest.raises(ConfigurationError, match=r"name|edge id"):
        authority.invite(name, 0, HOUR)
    for role in (Role.EDGE, Role.HELPER):
        with pytest.raises(ConfigurationError, match=r"name|edge id"):
            authority.issue(name, role)
    assert authority.register() == before


def test_a_name_has_one_valid_certificate(authority: Authority) -> None:
    authority.issue("lab-0", Role.EDGE)
    for role in (Role.EDGE, Role.HELPER):
        with pytest.raises(ConfigurationError, match="valid certificate of this name"):
            authority.issue("lab-0", role)
    authority.issue("lab-0", Role.EDGE, again=True)
    assert [entry.revoked is None for entry in authority.register().entries] == [False, True]
    revoked = x509.load_pem_x509_crl(authority.revocations("edges"))
    assert [f"{one.serial_number:x}" for one in revoked] == [authority.register().entries[0].serial]
    authority.revoke("lab-0")
    assert authority.register().valid("lab-0", datetime.now(UTC)) is None
    with pytest.raises(ConfigurationError, match="no valid certificate"):
        authority.revoke("lab-0")


def test_certificates_issued_at_once_are_all_in_the_register(authority: Authority) -> None:
    threads = [
        threading.Thread(target=authority.issue, args=(f"lab-{number}", Role.EDGE)) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry.name for entry in authority.register().entries) == [
        f"lab-{number}" for number in range(8)
    ]


def test_whatever_was_revoked_meanwhile_stays_in_the_brokers_list(
    authority: Authority, tmp_path: Path
) -> None:
    names = [f"lab-{number}" for number in range(6)]
    for name in names:
        authority.issue(name, Role.EDGE)

    def revoke(name: str) -> None:
        Authority(authority.folder).revoke(name)
        write_revocations(tmp_path / "broker", Authority(authority.folder))

    threads = [threading.Thread(target=revoke, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(x509.load_pem_x509_crl((tmp_path / "broker" / "edges.crl").read_bytes()))) == len(names)


def test_keys_and_the_register_are_their_owners_alone(authority: Authority, tmp_path: Path) -> None:
    authority.issue("lab-0", Role.EDGE).write(tmp_path / "edges" / "lab-0")
    for path in (*authority.folder.iterdir(), *(tmp_path / "edges" / "lab-0").iterdir()):
        assert path.name == ".lock" or stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert "PRIVATE" not in (authority.folder / "register.json").read_text()


@pytest.mark.parametrize("hosts", [["vm example"], ["a" * 64 + ".org"], ["-_/"], [""]])
def test_a_host_that_is_none_is_refused_before_anything_is_made(tmp_path: Path, hosts: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="host = "):
        Authority.create(tmp_path / "authority", hosts)
    assert not (tmp_path / "authority").exists()


def test_an_authority_is_never_written_over(authority: Authority) -> None:
    before = {path.name: path.read_bytes() for path in authority.folder.iterdir()}
    with pytest.raises(ConfigurationError, match="not empty"):
        Authority.create(authority.folder, ["vm.example.org"])
    assert before == {path.name: path.read_bytes() for path in authority.folder.iterdir()}


@pytest.mark.parametrize("content", [None, b"", b"not PEM"])
@pytest.mark.parametrize("file", ["services.pem", "edges.pem", "edges.key"])
def test_a_lost_or_damaged_file_is_named_and_nothing_is_issued(
    authority: Authority, file: str, content: bytes | None
) -> None:
    (authority.folder / file).unlink()
    if content is not None:
        (authority.folder / file).write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"{file}: cannot be read .*restore it from a copy"):
        authority.issue("north", Role.EDGE)
    assert authority.register().entries == []


def test_the_key_of_another_authority_signs_nothing(authority: Authority) -> None:
    (authority.folder / "edges.key").write_bytes((authority.folder / "services.key").read_bytes())
    with pytest.raises(ConfigurationError, match=r"edges\.key: is not the key of edges\.pem"):
        authority.issue("north", Role.EDGE)
    assert authority.register().entries == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"until": "2', '"until": "x2'),
        ("+00:00", ""),
        ('"serial": "', '"serial": "zz'),
        ('"keys": {', '"keys": 3, "more": {'),
        ('"entries"', '"entry"'),
        ("{", "[" * 100_000),
    ],
)
def test_a_damaged_register_is_said(authority: Authority, before: str, after: str) -> None:
    authority.issue("north", Role.EDGE)
    authority.invite("south", 0, HOUR)
    path = authority.folder / "register.json"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(ConfigurationError, match=r"register\.json: cannot be read .*restore it from a copy"):
        authority.register()


# -- the command ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certs.init(["localhost"], tmp_path)
    certs.edge(["lab-0", "lab-1"], tmp_path)
    return tmp_path


@pytest.mark.parametrize("run", ["first", None])
def test_edges_may_write_to_the_run_that_is_named_alone(tmp_path: Path, run: str | None) -> None:
    certs.init(["localhost"], tmp_path, run=run)
    rules = (tmp_path / "broker" / "acl").read_text().splitlines()
    written = {rule for rule in rules if rule.startswith("pattern write")}
    leaves = ("hello", "gradient", "leave", "will")
    assert {f"pattern write mapa/v1/{run or '+'}/edge/%u/{leaf}" for leaf in leaves} <= written
    assert all(f"/{run or '+'}/" in rule for rule in written)


def test_a_name_that_no_run_can_have_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="run"):
        certs.init(["localhost"], tmp_path / "secrets", run="a/b")
    assert not (tmp_path / "secrets").exists()


def listed(folder: Path) -> list[str]:
    """Return the names whose certificates the broker refuses."""
    serials = {one.serial: one.name for one in Authority(folder / "authority").register().entries}
    content = (folder / "broker" / "edges.crl").read_bytes()
    return [serials[f"{one.serial_number:x}"] for one in x509.load_pem_x509_crl(content)]


def test_a_revocation_that_was_interrupted_reaches_the_broker_at_the_next_try(folder: Path) -> None:
    Authority(folder / "authority").revoke("lab-0")  # killed before the broker's list was written
    assert listed(folder) == []
    with pytest.raises(ConfigurationError, match="no valid certificate"):
        certs.revoke(["lab-0"], folder)
    assert listed(folder) == ["lab-0"]


def test_of_several_names_all_are_revoked_or_none(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="name = 'typo'"):
        certs.revoke(["lab-0", "typo"], folder)
    now = datetime.now(UTC)
    assert Authority(folder / "authority").register().valid("lab-0", now) is not None
    certs.revoke(["lab-0", "lab-1", "lab-0"], folder)
    assert listed(folder) == ["lab-0", "lab-1"]


def test_what_was_rotated_before_a_mistake_is_refused_from_then_on(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="name = 'typo'"):
        certs.rotate(["lab-0", "typo"], folder)
    assert listed(folder) == ["lab-0"]


def test_a_service_without_a_key_here_is_not_told_to_enrol(folder: Path) -> None:
    Authority(folder / "authority").issue("cloud", Role.CLOUD)  # killed before its files were written
    with pytest.raises(ConfigurationError, match="`mapa certs revoke cloud` and `mapa certs cloud`"):
        certs.rotate(["cloud"], folder)
    certs.revoke(["cloud"], folder)
    certs.cloud(folder)


@pytest.mark.parametrize(
    "groups", [["lab=2", "lab-1"], ["lab-1", "lab=2"], ["lab=2", "lab=3"], ["lab=2", "lab"], ["desk", "desk"]]
)
def test_groups_that_share_an_edge_are_refused(groups: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"must be (without lab-1, which|one group of the name)"):
        certs.counts(groups)
    assert certs.counts(["lab=2", "lab-2"]) == {"lab": 2, "lab-2": 0}


def test_a_password_is_made_once_whatever_group_asks_for_it_later(tmp_path: Path) -> None:
    certs.init(["localhost"], tmp_path, passwords=True)
    certs.passwords(["lab=2"], tmp_path)
    accounts = tmp_path / "edges" / "lab" / "accounts"
    first = (accounts / "lab-1").read_text()
    for group in ("lab-1", "cloud"):
        with pytest.raises(ConfigurationError, match=f"name = '{group}'"):
            certs.passwords([group], tmp_path)
    (accounts / ".lab-2.0123abcd").touch()  # of a process that was killed as it wrote
    certs.passwords(["lab=3"], tmp_path)
    assert (accounts / "lab-1").read_text() == first
    users = [line.partition(":")[0] for line in (tmp_path / "broker" / "passwords").read_text().splitlines()]
    assert users == ["cloud", "lab-0", "lab-1", "lab-2"]


# -- over the network -----------------------------------------------------------------------------------


def token_for(authority: Authority, server: EnrolmentServer, group: str = "north", count: int = 0) -> Token:
    secret, until = authority.invite(group, count, HOUR)
    return Token("localhost", server.port, group, count, authority.fingerprint, secret, until.isoformat())


@pytest.fixture
def serving(authority: Authority) -> EnrolmentServer:
    return EnrolmentServer(authority, "localhost", ("127.0.0.1", 0), lambda _: None, lambda _: None)


def test_a_workstation_enrols_with_the_text_of_a_token(
    authority: Authority, serving: EnrolmentServer, tmp_path: Path
) -> None:
    with serving.running():
        token = Token.parse(str(token_for(authority, serving)))
        enrol(token, tmp_path)
    certificate, key, ca = (
        (tmp_path / "north" / f"{name}.pem").read_bytes() for name in ("cert", "key", "ca")
    )
    assert common_name(certificate) == "CN=north"
    assert ca == authority.services_certificate
    private = serialization.load_pem_private_key(key, None)
    assert x509.load_pem_x509_certificate(certificate).public_key() == private.public_key()
    held = [path.read_text() for path in authority.folder.iterdir()]
    assert not any(key.decode() in text or token.secret in text for text in held)


def test_one_token_enrols_a_group_of_edges_whichever_process_asks(
    authority: Authority, serving: EnrolmentServer, tmp_path: Path
) -> None:
    with serving.running():
        token = token_for(authority, serving, "lab", 3)
        threads = [threading.Thread(target=enrol, args=(token, tmp_path)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    names = ["lab-0", "lab-1", "lab-2"]
    assert sorted(path.name for path in tmp_path.glob("lab-*")) == names
    assert len({(tmp_path / name / "key.pem").read_bytes() for name in names}) == 3
    assert [one.name for one in authority.register().entries if one.role is Role.EDGE] == names


def test_a_new_token_brings_a_new_key_and_revokes_the_old_certificate(
    authority: Authority, serving: EnrolmentServer, tmp_path: Path
) -> None:
    keys = []
    with serving.running():
        for _ in range(2):
            enrol(token_for(authority, serving), tmp_path)
            keys.append((tmp_path / "north" / "key.pem").read_bytes())
    assert keys[0] != keys[1]
    states = [one.state(datetime.now(UTC)) for one in authority.register().entries if one.name == "north"]
    assert states == ["revoked", "valid"]


def test_an_authority_other_than_the_tokens_learns_no_secret(authority: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", ["localhost"])
    asked: list[str] = []
    impostor = EnrolmentServer(other, "localhost", ("127.0.0.1", 0), lambda _: None, asked.append)
    with (
        impostor.running(),
        pytest.raises(ConfigurationError, match="another authority than the token names"),
    ):
        enrol(token_for(authority, impostor), tmp_path / "edge")
    assert asked == []
    assert not (tmp_path / "edge" / "north").exists()


def test_a_server_without_the_authoritys_certificate_learns_no_secret(
    authority: Authority, serving: EnrolmentServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may show the real authority's certificate, which is public."""
    other = Authority.create(tmp_path / "other", ["localhost"])
    asked: list[str] = []
    impostor = EnrolmentServer(other, "localhost", ("127.0.0.1", 0), lambda _: None, asked.append)
    monkeypatch.setattr(
        Authority,
        "services_certificate",
        property(lambda _self: (authority.folder / "services.pem").read_bytes()),
    )
    with impostor.running(), pytest.raises(ConfigurationError, match="is not trusted"):
        enrol(token_for(authority, impostor), tmp_path / "edge")
    assert asked == []
    with serving.running():
        enrol(token_for(authority, serving), tmp_path / "edge")


def test_a_lost_answer_costs_no_second_token(
    authority: Authority, serving: EnrolmentServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = Authority.enrol

    def signed_but_never_told(self: Authority, name: str, secret: str, request: bytes) -> bytes:
        signed(self, name, secret, request)
        raise ConfigurationError("the answer is lost")

    with serving.running():
        token = token_for(authority, serving)
        monkeypatch.setattr(Authority, "enrol", signed_but_never_told)
        with pytest.raises(ConfigurationError, match="the answer is lost"):
            enrol(token, tmp_path)
        monkeypatch.undo()
        enrol(token, tmp_path)
        with pytest.raises(ConfigurationError, match="used already"):
            enrol(token, tmp_path / "thief")
    enrol(token, tmp_path)  # it has all it asks for, and asks nobody


def test_nobody_there_is_said_and_may_be_tried_again(
    authority: Authority, serving: EnrolmentServer, tmp_path: Path
) -> None:
    with serving.running():
        token = token_for(authority, serving)
    with pytest.raises(BrokerUnavailableError, match="does `mapa certs enrol` still run there"):
        enrol(token, tmp_path / "edge")


@pytest.mark.parametrize(
    ("length", "body"),
    [
        ("9" * 5000, b""),
        ("-1", b""),
        (None, b"[" * 8000),
        (None, rb'{"name": "north", "secret": "\ud800", "request": "x"}'),
        (None, rb'{"name": "north", "secret": "x", "request": "\ud800"}'),
        (None, b'{"name": "north", "secret": 3, "request": "x"}'),
    ],
)
def test_a_request_of_a_stranger_is_malformed_and_nothing_worse(
    serving: EnrolmentServer, length: str | None, body: bytes
) -> None:
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    with (
        serving.running(),
        closing(
            http.client.HTTPSConnection("127.0.0.1", serving.port, timeout=PATIENCE, context=blind)
        ) as one,
    ):
        one.request("POST", "/enrol", body, {"Content-Length": length or str(len(body))})
        answer = one.getresponse()
        assert (answer.status, answer.read()) == (403, b"request: malformed")


def test_the_server_ends_after_the_last_answer(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends as soon as all have come: its process takes no answer with it."""
    over, ending, sent = (threading.Event() for _ in range(3))
    server = EnrolmentServer(authority, "localhost", ("127.0.0.1", 0), lambda _: over.set(), lambda _: None)
    sign, close = server.sign, server._server.server_close

    def slowly(values: dict[str, str]) -> bytes:
        certificate = sign(values)
        assert ending.wait(PATIENCE)
        sent.set()
        return certificate

    def begin_to_end() -> None:
        close()
        ending.set()

    monkeypatch.setattr(server, "sign", slowly)
    monkeypatch.setattr(server._server, "server_close", begin_to_end)
    with server.running():
        edge = threading.Thread(target=enrol, args=(token_for(authority, server), tmp_path))
        edge.start()
        assert over.wait(PATIENCE)
    assert sent.is_set()
    edge.join()
    assert (tmp_path / "north" / "cert.pem").exists()


def test_a_port_that_is_taken_is_said(authority: Authority) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigurationError, match=r"--address 127\.0\.0\.1 --port \d+: cannot listen there"),
    ):
        EnrolmentServer(authority, "localhost", taken.getsockname(), lambda _: None, lambda _: None)


def test_a_text_that_is_no_token_is_refused_without_being_repeated() -> None:
    good = str(Token("localhost", 1, "north", 0, "00", "s3cret", datetime.now(UTC).isoformat()))
    bad = [
        "",
        "mapa-",
        "x" * 10,
        good[:-3],
        good.removeprefix("mapa-"),
        "mapa-" + "W10",
        "mapa-" + "ö" * 9,
        "mapa-" + "A" * 9000,
    ]
    for text in bad:
        with pytest.raises(ConfigurationError, match="is no token") as caught:
            Token.parse(text)
        assert len(text) < 5 or text not in str(caught.value)


def test_an_expired_token_asks_nobody(tmp_path: Path) -> None:
    token = Token("localhost", 1, "north", 0, "00", "s3cret", datetime.now(UTC).isoformat())
    with pytest.raises(ConfigurationError, match="token for north expired") as caught:
        enrol(token, tmp_path)
    assert "s3cret" not in str(caught.value)
