"""All checks of one run, from its directory or from a bundle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from common.models.model import Model
from common.records.directory import FORMAT, run_of, versions
from common.records.layout import keeps_gradients
from common.scenario.scenario import Scenario
from mapa.recording import ENGINES, NETWORKED
from mapa.verification.bundle import Bundle, check_claims, read_bundle
from mapa.verification.check import Check, claimed, failed, guarded, passed
from mapa.verification.checks_privacy import Released, check_ledgers, check_statement, releases_shown
from mapa.verification.checks_records import (
    RecordedEvents,
    check_end,
    check_events,
    check_summary,
    has_record,
    manifest_as_written,
    metrics_of,
)
from mapa.verification.log_replay import (
    LogReplay,
    continuity,
    first_state,
    log_in_order,
    model_of,
    model_of_run,
    scenario_of,
    start_of,
)
from mapa.verification.untrusted_files import (
    EVENTS,
    LEDGERS,
    MANIFEST,
    MODEL,
    START,
    START_OF_LOG,
    SUMMARY,
    NotCheckedError,
    RunFiles,
    UnreadableError,
    find_ledgers,
    of_directory,
)

_LONGEST = 200  # characters of a package's name or version


@dataclass(slots=True)
class Verification:
    """A run or bundle, what is allowed in checking it, and what its checks have found so far."""

    files: RunFiles
    bundle: Bundle | None
    allowed: Collection[str]
    unlogged: bool = False  # whether a run without a gradient log may pass
    faults: list[Check] = field(default_factory=list)  # found while it was read
    scenario: Scenario | None = None
    model: Model | None = None
    replay: LogReplay | None = None
    events: RecordedEvents | None = None
    released: list[Released] | None = None

    @classmethod
    def of(
        cls, path: Path, allowed: Collection[str], ledgers: Collection[Path] = (), *, unlogged: bool = False
    ) -> Verification:
        """Read a bundle, or a run's directory with the ledgers that it holds."""
        if path.is_dir():
            files = of_directory(path)
            return cls(files, None, allowed, unlogged, list(_take_ledgers(files, path, ledgers)))
        bundle = read_bundle(path)
        return cls(bundle.files, bundle, allowed, unlogged, bundle.checks)

    def checks(self) -> Iterator[Check]:
        """Yield every check, each whatever became of those before it."""
        yield from self.faults
        if self.bundle is not None and self.bundle.manifest:
            yield from guarded("manifest", MANIFEST, partial(check_claims, self.bundle))
        for check in self._of_run():
            in_bundle = self.bundle is not None and check.part in self.files
            yield replace(check, part=f"{self.files.prefix}{check.part}") if in_bundle else check

    def _of_run(self) -> Iterator[Check]:
        files = self.files
        yield from guarded("scenario", MANIFEST, self._scenario)
        yield from guarded("versions", MANIFEST, self._versions)
        if files.segments and (START_OF_LOG in files or self._is_log_due()):
            yield from guarded("log", "log", partial(log_in_order, files))
            if self._is_log_due():
                yield from guarded("checkpoint", START[0], self._checkpoint)
            yield from guarded("replay", "log", self._replay)
            if self.replay is not None:
                yield from guarded("continuity", "log", partial(continuity, self.replay))
        else:
            yield from guarded("log", "log", self._no_log)
        if self.scenario is not None:
            yield from self._records(self.scenario)

    def _records(self, scenario: Scenario) -> Iterator[Check]:
        """Check the records against the log; against each other, where there is none."""
        files, replay = self.files, self.replay
        yield from guarded("fields", MANIFEST, partial(manifest_as_written, files, scenario))
        if replay is None:
            self.model = self._model(scenario)
        yield from guarded("events", EVENTS, partial(self._events, scenario))
        yield from guarded("end", SUMMARY, partial(check_end, files, scenario, replay, self.events))
        yield from guarded(
            "summary", SUMMARY, partial(check_summary, files, scenario, self.model, replay, self.events)
        )
        yield from guarded("releases", SUMMARY, partial(self._releases, scenario))
        if (released := self.released) is not None:
            yield from guarded("ledgers", LEDGERS, partial(check_ledgers, files, scenario, released, replay))
            yield from guarded("ε", SUMMARY, partial(check_statement, files, scenario, released, replay))
        layout = None if self.model is None else self.model.layout
        yield from guarded("model", MODEL, partial(model_of_run, files, replay, scenario, layout))

    def _scenario(self) -> Iterator[Check]:
        manifest = self.files.json(MANIFEST)
        stated, engine = manifest.get("scenario_sha256"), manifest.get("engine")
        text = json.dumps(manifest.get("scenario"), sort_keys=True, separators=(",", ":"))
        written = hashlib.sha256(text.encode()).hexdigest()
        wrong = []
        if stated != written:
            wrong.append(f"scenario_sha256 = {stated!r:.80}; its scenario has {written}")
        try:
            run_of(manifest)
        except ConfigurationError as error:
            wrong.append(str(error).removeprefix(f"{MANIFEST}: "))
        if engine not in (*ENGINES, *NETWORKED):
            wrong.append(f"engine = {engine!r:.40}: no engine of this version")
        yield from (failed("scenario", MANIFEST, detail) for detail in wrong)
        self.scenario = scenario_of(manifest, self.allowed)
        if self.scenario.digest != written:
            yield failed("scenario", MANIFEST, "the scenario is not in its canonical form")
        elif not wrong:
            yield passed("scenario", MANIFEST, f"SHA-256 {written[:16]}…")

    def _versions(self) -> Iterator[Check]:
        """Check that the manifest is of a format read here, and names what made the run; nothing can prove it."""
        manifest = self.files.json(MANIFEST)
        stated, form = manifest.get("versions"), manifest.get("format")
        if form != FORMAT or type(form) is not int:
            yield failed("versions", MANIFEST, f"format = {form!r:.40}; this version reads {FORMAT} alone")
            return
        if not isinstance(stated, dict) or not all(map(_is_version, stated.items())):
            yield failed("versions", MANIFEST, f"versions = {stated!r:.100}: not names with a version each")
            return
        if missing := [name for name in ("mapa-testbed", "python", "numpy") if name not in stated]:
            yield failed("versions", MANIFEST, f"versions: {', '.join(missing)} missing")
            return
        own = versions()
        other = [name for name in ("mapa-testbed", "numpy") if own[name] != stated[name]]
        here = ", ".join(f"{name} {own[name]}" for name in other) or "the same"
        made = f"mapa-testbed {stated['mapa-testbed']}, numpy {stated['numpy']}"
        yield passed("versions", MANIFEST, f"as stated, {made}; here {here}")

    def _checkpoint(self) -> Iterator[Check]:
        first_state(self.files)
        yield passed("checkpoint", START[0], "the cloud at t = 1 is whole, with its checksums")

    def _replay(self) -> Iterator[Check]:
        if self.scenario is None:
            raise NotCheckedError("the scenario cannot be read here: see above")
        start = start_of(self.files, self.scenario, self.allowed)
        replay = LogReplay.of(self.files, start)
        self.model, self.replay = start.model, replay
        first = "x₁ follows from the scenario" if start.derived else "x₁ as the first checkpoint has it"
        algorithm = self.scenario.algorithm.name
        yield passed("replay", "log", f"taken again to t = {replay.server.updates} by {algorithm}; {first}")

    def _model(self, scenario: Scenario) -> Model | None:
        """Return the model of a run without a log; None if it cannot be made here: what needs it is then claimed."""
        try:
            return model_of(scenario, self.files.json(MANIFEST), self.allowed)
        except (NotCheckedError, UnreadableError):
            return None

    def _events(self, scenario: Scenario) -> Iterator[Check]:
        if not scenario.records.events:
            if EVENTS in self.files and len(self.files.contents[EVENTS]):
                yield failed("events", EVENTS, "has lines, but the scenario asks for none")
            else:
                yield passed("events", EVENTS, "the scenario asks for none, and there are none")
            return
        manifest, summary = self.files.json(MANIFEST), self.files.json(SUMMARY)
        logged = None if self.replay is None else filter(has_record, self.replay.facts)
        metrics = metrics_of(self.model, summary)
        events = RecordedEvents(scenario, str(manifest.get("engine")), metrics, logged)
        for check in check_events(self.files, events):
            yield check
            self.events = events if check.status is not check.status.FAILED else None

    def _releases(self, scenario: Scenario) -> Iterator[Check]:
        engine = str(self.files.json(MANIFEST).get("engine"))
        self.released = releases_shown(self.files, scenario, engine, self.replay, self.events)
        yield from ()

    def _is_log_due(self) -> bool:
        """Tell whether a whole log must be there; where that cannot be told, it is looked for."""
        try:
            return self._keeps_log()
        except Exception:  # untrusted records: the check of what cannot be read fails by itself
            return True

    def _keeps_log(self) -> bool:
        """Tell whether the run, by its own scenario, keeps the log of its gradients when it has ended."""
        manifest = self.files.json(MANIFEST)
        scenario: Any = manifest["scenario"]
        asked = scenario["records"].get("keep_gradients")
        if manifest.get("engine") in ENGINES:
            return asked is True  # a simulation writes one only where it is told to
        return keeps_gradients(asked, scenario["iterations"], self.files.model()[0]["x"].size)

    def _no_log(self) -> Iterator[Check]:
        if self._keeps_log():
            raise UnreadableError("log", "missing, and by its scenario this run keeps its gradients")
        left = "only its end is left" if self.files.segments else "missing"
        detail = f"{left}: this run did not keep its gradients, so nothing is replayed"
        if not self.unlogged:
            raise NotCheckedError(f"{detail}; --allow-unlogged takes the final model for claimed")
        yield claimed("log", "log", detail)


def _take_ledgers(files: RunFiles, path: Path, given: Collection[Path]) -> Iterator[Check]:
    """Add what ledgers say of the run to its files; yield those in its own directory that cannot be read."""
    try:
        run = run_of(files.json(MANIFEST))
    except (UnreadableError, ConfigurationError):
        return  # which accounts are this run's cannot be told: the check of the manifest fails
    ledgers = find_ledgers(path, run, given)
    files.ledgers += ledgers.statements
    files.other_ledgers.update(ledgers.others)
    yield from (failed("ledgers", part, why) for part, why in ledgers.faults.items())


def _is_version(item: tuple[object, object]) -> bool:
    return all(isinstance(text, str) and 0 < len(text) <= _LONGEST and text.isprintable() for text in item)
