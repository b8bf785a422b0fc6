"""Debits that are synced together: none is lost, doubled or sent too early, whenever the process or the power ends."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigurationError, LedgerUnavailableError
from common.quantities import RunId
from edge import journal as storage
from edge.journal import FILES, Journals
from edge.ledger import Done
from edge.sqlite_ledger import FILE_NAME, SqliteLedger, ledger_snapshot
from edge.state_directory import StateDirectory
from tests.edge_support import Stage, account, spend

RUN = RunId("r")


def bytes_of(slot: str, sequence: int) -> bytes:
    return f"{slot}/{sequence};".encode() * 40


class Process:
    """The edges of one process: debits of a turn are durable together, and then published to a file of the test."""

    def __init__(self, state: Path, slots: list[str], wire: Path) -> None:
        self.turn: list[Callable[[], None]] = []
        self.wire = os.open(wire, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.journals = Journals(self.turn.append)
        self.directory = StateDirectory(state)
        self.slots = [self.directory.take([name]) for name in slots]
        self.ledgers = {
            slot.name: SqliteLedger(slot.directory, journals=self.journals) for slot in self.slots
        }
        for name, ledger in self.ledgers.items():
            ledger.open(account())
            for sequence, payload in ledger.pending(RUN):
                assert payload == bytes_of(name, sequence)

    def debit(self, slot: str) -> None:
        ledger = self.ledgers[slot]
        sequence = ledger.last_sequence(RUN) + 1
        ledger.acknowledge(RUN, sequence - 1)
        ledger.debit(RUN, sequence, bytes_of(slot, sequence), self._publishing(slot, sequence))

    def _publishing(self, slot: str, sequence: int) -> Done:
        def publish(failure: LedgerUnavailableError | None) -> None:
            if failure is None:
                assert dict(self.ledgers[slot].pending(RUN))[sequence] == bytes_of(slot, sequence)
                os.write(self.wire, f"{slot} {sequence}\n".encode())

        return publish

    def take_turns(self, count: int) -> None:
        for _ in range(count):
            for slot in self.ledgers:
                self.debit(slot)
            while self.turn:
                self.turn.pop(0)()

    def close(self) -> None:
        for ledger in self.ledgers.values():
            ledger.close()
        for slot in self.slots:
            slot.close()
        self.directory.close()
        os.close(self.wire)


def in_child(work: Callable[[], None]) -> int:
    """Do it in a process of its own; return how that ended, negative by a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def sent(wire: Path) -> dict[str, list[int]]:
    left: dict[str, list[int]] = {}
    for line in wire.read_text().splitlines() if wire.exists() else []:
        slot, sequence = line.split()
        left.setdefault(slot, []).append(int(sequence))
    return left


def check(state: Path, slots: list[str], wire: Path) -> None:
    """See that every gradient that left was debited, once, and can be sent again as it was."""
    left = sent(wire)
    for slot in slots:
        last = max(left.get(slot, []), default=0)
        assert left.get(slot, []) == list(range(1, last + 1))
        if not (state / slot / FILE_NAME).exists():
            assert last == 0
            continue
        with ledger_snapshot(state / slot) as ledger:
            if ledger.account(RUN) is None:
                assert last == 0
                continue
            standing, pending = ledger.standing(RUN), dict(ledger.pending(RUN))
        assert last <= standing.releases <= last + 1
        assert standing.charges == standing.releases
        for sequence in {standing.releases} - {0}:
            assert pending.get(sequence, bytes_of(slot, sequence)) == bytes_of(slot, sequence)
        assert last == standing.releases or standing.releases in pending


@dataclass
class Cut:
    """Ends this process at its n-th write or sync, as SIGKILL or as a power failure does; counts from 1."""

    moment: int
    power: bool  # what was written and not synced is lost, but for a part of it
    done: int = 0
    write: Callable[[int, bytes, int], int] = os.pwrite
    unsynced: dict[int, list[tuple[int, bytes, bytes, int]]] = field(default_factory=dict)

    def install(self) -> None:
        for name in ("fsync", "fdatasync", "link", "write"):
            setattr(os, name, self._cut(getattr(os, name), sync=name.startswith("f")))

        def pwritev(file: int, pieces: list[bytes], at: int) -> int:
            content = b"".join(pieces)
            size = os.fstat(file).st_size
            before = os.pread(file, len(content), at)
            self.unsynced.setdefault(file, []).append((at, before, content, size))
            return self.write(file, content, at)

        os.pwritev = self._cut(pwritev)
        SqliteLedger._execute = self._cut(SqliteLedger._execute)  # type: ignore[method-assign]

    def _cut(self, call: Callable[..., Any], *, sync: bool = False) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self._maybe()
            answer = call(*arguments)
            if sync:
                self.unsynced.pop(arguments[0], None)
            self._maybe()
            return answer

        return counted

    def _maybe(self) -> None:
        self.done += 1
        if self.done != self.moment:
            return
        if self.power:
            for file, writes in self.unsynced.items():
                for at, before, content, size in reversed(writes):
                    kept = self.moment * 37 % (len(content) + 1)
                    os.ftruncate(file, max(size, at + kept))
                    self.write(file, content[:kept] + before[kept:], at)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_ROOM", 1500)
    monkeypatch.setattr(storage, "_ROUNDS", 2)


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power cut"])
@pytest.mark.usefixtures("small_files")
def test_at_every_moment_of_a_turn_what_left_was_debited_once(tmp_path: Path, power: bool) -> None:
    """The second process goes on where the first was cut, and ends well: nothing is missing from its books."""
    slots = ["0", "1"]

    def work(place: Path, moment: int) -> None:
        Cut(moment, power).install()
        process = Process(place / "state", slots, place / "wire")
        process.take_turns(3)
        process.close()

    moment, ended = 0, -signal.SIGKILL
    while ended == -signal.SIGKILL:
        moment += 1
        place = tmp_path / str(moment)
        place.mkdir()
        ended = in_child(lambda: work(place, moment))  # noqa: B023 - called at once
        check(place / "state", slots, place / "wire")
        before = {slot: max(left) for slot, left in sent(place / "wire").items()}
        again = Process(place / "state", slots[::-1], place / "second")
        for slot in slots:
            assert again.ledgers[slot].last_sequence(RUN) >= before.get(slot, 0)
        again.take_turns(2)
        again.close()
        for slot in slots:
            with SqliteLedger(place / "state" / slot) as ledger:
                assert before.get(slot, 0) + 2 <= ledger.standing(RUN).charges <= before.get(slot, 0) + 3
            assert not (place / "state" / slot / FILES[0]).exists()
        shutil.rmtree(place)
    assert ended == 0
    assert moment > 50


def test_slots_move_between_processes_and_volumes(tmp_path: Path) -> None:
    """20 edges in two processes, then in one, then slot 7 alone on another volume; each process is killed."""
    state, wire, slots = tmp_path / "state", tmp_path / "wire", [str(number) for number in range(20)]

    def work(part: list[str], turns: int, where: Path = state) -> None:
        Process(where, part, wire).take_turns(turns)
        os.kill(os.getpid(), signal.SIGKILL)

    for part, turns in ((slots[:10], 3), (slots[10:], 2), (slots, 4)):
        assert in_child(lambda: work(part, turns)) == -signal.SIGKILL  # noqa: B023 - called at once
        check(state, slots, wire)
    volume = tmp_path / "volume"
    shutil.copytree(state / "7", volume / "7")  # a copy has no links to the other slots
    shutil.rmtree(state)
    assert in_child(lambda: work(["7"], 1, volume)) == -signal.SIGKILL
    with SqliteLedger(volume / "7") as ledger:
        assert (ledger.standing(RUN).releases, ledger.standing(RUN).charges) == (8, 8)
        assert ledger.pending(RUN) == [(8, bytes_of("7", 8))]
    assert len(sent(wire)["7"]) == 8


@pytest.mark.usefixtures("small_files")
def test_an_idle_edge_s_debit_outlives_every_lap_of_the_files(tmp_path: Path) -> None:
    def work() -> None:
        process = Process(tmp_path / "state", ["0", "1"], tmp_path / "wire")
        process.take_turns(1)
        process.ledgers["0"].debit(RUN, 2, bytes_of("0", 2))  # the first one is not acknowledged
        for _ in range(40):
            process.debit("1")
            process.turn.pop()()
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == -signal.SIGKILL
    check(tmp_path / "state", ["0", "1"], tmp_path / "wire")
    assert (tmp_path / "state" / "0" / FILES[0]).stat().st_size < 2 * len(storage._ZEROS)
    with SqliteLedger(tmp_path / "state" / "0") as ledger:
        assert ledger.pending(RUN) == [(1, bytes_of("0", 1)), (2, bytes_of("0", 2))]
    with SqliteLedger(tmp_path / "state" / "1") as ledger:
        assert ledger.standing(RUN).charges == 41


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path / "state", ["0", "1", "2"], tmp_path / "wire")
    yield made
    made.close()


def test_edges_of_a_process_share_one_sync(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    process.take_turns(1)
    synced: list[int] = []
    monkeypatch.setattr("os.fdatasync", synced.append)
    process.take_turns(2)
    assert len(synced) == 2
    assert {len(left) for left in sent_of(process).values()} == {3}


def sent_of(process: Process) -> dict[str, list[int]]:
    return sent(process.directory.folder.parent / "wire")


def test_after_a_full_disk_nothing_leaves_and_a_fresh_look_goes_on(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.take_turns(2)
    with monkeypatch.context() as full:
        full.setattr("os.pwritev", lambda *_: fail(errno.ENOSPC))
        process.take_turns(1)
    assert {len(left) for left in sent_of(process).values()} == {2}
    with pytest.raises(ConfigurationError, match="closed"):
        process.take_turns(1)
    folder = process.directory.folder
    process.close()
    check(folder, list(process.ledgers), folder.parent / "wire")
    for slot in process.ledgers:
        with SqliteLedger(folder / slot) as ledger:
            assert ledger.standing(RUN).charges == 2
    process.__init__(folder, ["0"], folder.parent / "other")  # type: ignore[misc]
    process.take_turns(1)


def test_a_file_that_is_full_in_the_middle_of_a_record_loses_that_record_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_fill", lambda *_: None)  # else the space is taken beforehand

    def work() -> None:
        process = Process(tmp_path / "state", ["0", "1"], tmp_path / "wire")
        process.take_turns(2)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = (tmp_path / "state" / "0" / FILES[0]).stat().st_size
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (size + 350, size + 350)
        )  # of the next two records one fits
        process.take_turns(1)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == -signal.SIGKILL
    assert sent(tmp_path / "wire") == {"0": [1, 2], "1": [1, 2]}
    for slot, debited in (
        ("0", 3),
        ("1", 2),
    ):  # the first one may have been synced: it counts, and can be sent
        with SqliteLedger(tmp_path / "state" / slot) as ledger:
            assert ledger.standing(RUN).charges == debited
            assert ledger.pending(RUN)[-1] == (debited, bytes_of(slot, debited))


def test_what_the_disk_takes_in_parts_is_written_whole(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    monkeypatch.setattr("os.pwritev", lambda file, pieces, at: write(file, b"".join(pieces)[:7], at))
    monkeypatch.setattr("os.pwrite", lambda file, content, at: write(file, content[:100], at))
    process.take_turns(2)
    for slot in process.ledgers:
        with ledger_snapshot(process.directory.folder / slot) as ledger:
            assert ledger.pending(RUN) == [(2, bytes_of(slot, 2))]


def fail(number: int) -> int:
    raise OSError(number, os.strerror(number))


def test_an_edge_that_ends_leaves_the_journal_and_the_others_go_on(process: Process) -> None:
    process.take_turns(2)
    process.ledgers.pop("0").close()
    folder = process.directory.folder
    assert sorted(path.name for path in (folder / "0").iterdir()) == [FILE_NAME, "lock"]
    with SqliteLedger(folder / "0") as ledger:
        assert ledger.standing(RUN).charges == 2
        assert ledger.pending(RUN) == [(2, bytes_of("0", 2))]
    process.take_turns(2)
    assert {slot: len(left) for slot, left in sent_of(process).items()} == {"0": 2, "1": 4, "2": 4}


def test_a_journal_lies_in_the_directory_for_good_before_the_ledger_names_it(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure a ledger that names a journal must find it; one that names none has debited nothing."""
    calls: list[tuple[str, Path]] = []
    sync, execute = storage.sync_path, SqliteLedger._execute

    def synced(directory: Path) -> None:
        sync(directory)
        calls.append(("synced", directory))

    def named(ledger: SqliteLedger, statements: list[tuple[str, Any]]) -> None:
        if any(statement.startswith("INSERT INTO journal") for statement, _ in statements):
            calls.append(("named", ledger.path.parent))
        execute(ledger, statements)

    monkeypatch.setattr(storage, "sync_path", synced)
    monkeypatch.setattr(SqliteLedger, "_execute", named)
    process.take_turns(1)
    assert calls == [(what, slot.directory) for slot in process.slots for what in ("synced", "named")]


def test_an_edge_whose_directory_was_moved_takes_no_journal_of_its_successor(tmp_path: Path) -> None:
    earlier, later = (SqliteLedger(tmp_path / name) for name in ("slot", "later"))
    for ledger in (earlier, later):
        ledger.open(account())
        spend(ledger, 2)
    (tmp_path / "slot").rename(tmp_path / "moved")
    (tmp_path / "later").rename(tmp_path / "slot")
    earlier.close()
    with ledger_snapshot(tmp_path / "slot") as ledger:
        assert ledger.standing(RUN).charges == 2
    with ledger_snapshot(tmp_path / "moved") as ledger:
        assert ledger.standing(RUN).charges == 2
    later.close()


@pytest.mark.parametrize("limit", ["no links", "few members"])
def test_without_links_or_with_many_edges_there_are_more_journals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    link = os.link
    if limit == "few members":
        monkeypatch.setattr(storage, "MOST_MEMBERS", 2)
    else:  # another volume, or a file system that has none
        monkeypatch.setattr(
            "os.link", lambda old, new: fail(errno.EXDEV) if new.name in FILES else link(old, new)
        )
    slots = ["0", "1", "2"]
    process = Process(tmp_path / "state", slots, tmp_path / "wire")
    process.take_turns(3)
    inodes = {(tmp_path / "state" / slot / FILES[0]).stat().st_ino for slot in slots}
    assert len(inodes) == (2 if limit == "few members" else 3)
    process.close()
    check(tmp_path / "state", slots, tmp_path / "wire")


def test_a_ledger_whose_journal_is_missing_or_another_one_is_refused(tmp_path: Path) -> None:
    assert in_child(lambda: debit_and_die(tmp_path)) == -signal.SIGKILL
    kept = tmp_path / "kept"
    (tmp_path / FILES[1]).rename(kept)
    for content in (None, b"", b"another", bytes(100)):
        if content is not None:
            (tmp_path / FILES[1]).write_bytes(content)
        with pytest.raises(
            ConfigurationError, match=r"last debits are in journal-0 and journal-1 .*restore it"
        ):
            SqliteLedger(tmp_path)
    kept.replace(tmp_path / FILES[1])
    with SqliteLedger(tmp_path) as ledger:
        assert ledger.standing(RUN).charges == 3


def debit_and_die(directory: Path) -> None:
    ledger = SqliteLedger(directory)
    ledger.open(account())
    spend(ledger, 3)
    os.kill(os.getpid(), signal.SIGKILL)


def test_another_process_cannot_have_a_slot_whose_edge_lives(process: Process) -> None:
    process.take_turns(1)
    folder = process.directory.folder

    def claim() -> None:
        with pytest.raises(ConfigurationError, match="places are taken"):
            Process(folder, ["1"], folder.parent / "wire")
        with pytest.raises(ConfigurationError, match="another process holds it"):
            SqliteLedger(folder / "1")

    assert in_child(claim) == 0
    process.take_turns(1)
    process.close()
    check(folder, ["0", "1", "2"], folder.parent / "wire")
    process.__init__(folder, ["0"], folder.parent / "other")  # type: ignore[misc]


def test_a_gradient_leaves_after_the_sync_of_its_turn_and_not_at_all_after_an_end_before(
    tmp_path: Path,
) -> None:
    turn: list[Callable[[], None]] = []
    ledger = SqliteLedger(tmp_path, journals=Journals(turn.append))
    stage = Stage(ledger=ledger)
    stage.welcome()
    stage.model()
    assert (stage.pushed, ledger.pending(stage.run)) == (0, [])
    turn.pop()()
    assert stage.pushed == 1
    stage.model()
    stage.edge.leave("shutdown")
    assert turn.pop()() is None
    assert (stage.pushed, stage.leaves) == (1, ["shutdown"])
    with SqliteLedger(tmp_path) as again:
        [(sequence, _)] = again.pending(stage.run)
        assert (sequence, again.standing(stage.run).charges) == (2, 2)
