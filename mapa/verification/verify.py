"""All checks of one run, from its directory or from a bundle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from common.own_code import only_code
from common.records.directory import FORMAT, run_of, versions
from common.records.layout import keeps_gradients
from mapa.recording import ENGINES, NETWORKED
from mapa.verification import checks_records, replay
from mapa.verification.bundle import IN_BUNDLE, Bundle, check_claims, read_bundle
from mapa.verification.check import (
    Check,
    NotCheckedError,
    UnreadableError,
    claimed,
    failed,
    guarded,
    passed,
)
from mapa.verification.checks_privacy import check_privacy
from mapa.verification.checks_records import CheckedRun
from mapa.verification.untrusted_files import (
    EVENTS,
    MANIFEST,
    MODEL,
    START,
    START_OF_LOG,
    SUMMARY,
    RunFiles,
    find_ledgers,
    of_directory,
)

_LONGEST = 200  # characters of a package's name or version
_MADE_BY = ("mapa-testbed", "python", "numpy")


def verify(
    path: Path, allowed: Collection[str], ledgers: Collection[Path] = (), *, unlogged: bool = False
) -> list[Check]:
    """Check a bundle, or a run's directory with the ledgers that it holds; import only the code that is allowed.

    `unlogged`: a run without a gradient log may pass.
    """
    with only_code(allowed):
        if not path.is_dir():
            return list(_of_bundle(read_bundle(path), unlogged=unlogged))
        files = of_directory(path)
        run = None  # which accounts are this run's cannot be told, and the check of the manifest fails
        with suppress(UnreadableError, ConfigurationError):
            run = run_of(files.manifest)
        if run is not None:
            files.ledgers = find_ledgers(path, run, ledgers)
        faults = [failed("ledgers", part, why) for part, why in files.ledgers.faults.items()]
        return [*faults, *_of_run(files, unlogged=unlogged)]


def _of_bundle(bundle: Bundle, *, unlogged: bool) -> Iterator[Check]:
    yield from bundle.checks
    if bundle.manifest:
        yield from guarded("manifest", MANIFEST, check_claims, bundle)
    for check in _of_run(bundle.files, unlogged=unlogged):
        yield replace(check, part=f"{IN_BUNDLE}{check.part}") if check.part in bundle.files else check


def _of_run(files: RunFiles, *, unlogged: bool) -> Iterator[Check]:
    """Yield every check, each whatever became of those before it."""
    yield from guarded("scenario", MANIFEST, _scenario, files)
    yield from guarded("versions", MANIFEST, _versions, files)
    try:
        run = CheckedRun(files, replay.scenario_of(files.manifest))
    except Exception:  # untrusted records: the check of the scenario has said why
        run = None
    due = bool(files.segments) and _is_log_due(files)
    if due or START_OF_LOG in files:
        yield from guarded("log", "log", replay.log_in_order, files)
        if due:
            yield from guarded("checkpoint", START[0], _checkpoint, files)
        yield from guarded("replay", "log", _replay, run)
        if run is not None and run.replay is not None:
            yield from guarded("continuity", "log", replay.continuity, run.replay)
    else:
        yield from guarded("log", "log", _no_log, files, unlogged)
    if run is None:
        return
    if run.replay is None:
        with suppress(NotCheckedError, UnreadableError):  # without it, what needs it is claimed
            run.model = replay.model_of(run.scenario, files.manifest)
    yield from guarded("fields", MANIFEST, checks_records.manifest_as_written, run)
    yield from guarded("events", EVENTS, checks_records.check_events, run)
    yield from guarded("end", SUMMARY, checks_records.check_end, run)
    yield from guarded("summary", SUMMARY, checks_records.check_summary, run)
    yield from guarded("releases", SUMMARY, check_privacy, run)
    yield from guarded("model", MODEL, checks_records.check_model, run)


def _scenario(files: RunFiles) -> Iterator[Check]:
    manifest, wrong = files.manifest, []
    stated, engine = manifest.get("scenario_sha256"), manifest.get("engine")
    text = json.dumps(manifest.get("scenario"), sort_keys=True, separators=(",", ":"))
    written = hashlib.sha256(text.encode()).hexdigest()
    if stated != written:
        wrong.append(f"scenario_sha256 = {stated!r:.80}; its scenario has {written}")
    try:
        run_of(manifest)
    except ConfigurationError as error:
        wrong.append(str(error).removeprefix(f"{MANIFEST}: "))
    if engine not in (*ENGINES, *NETWORKED):
        wrong.append(f"engine = {engine!r:.40}: no engine of this version")
    yield from (failed("scenario", MANIFEST, detail) for detail in wrong)
    if replay.scenario_of(manifest).digest != written:
        yield failed("scenario", MANIFEST, "the scenario is not in its canonical form")
    elif not wrong:
        yield passed("scenario", MANIFEST, f"SHA-256 {written[:16]}…")


def _versions(files: RunFiles) -> Iterator[Check]:
    """Check that the manifest is of a format read here, and names what made the run; nothing can prove it."""
    stated, form = files.manifest.get("versions"), files.manifest.get("format")
    texts = [text for item in stated.items() for text in item] if isinstance(stated, dict) else [None]
    wrong = ""
    if form != FORMAT or type(form) is not int:
        wrong = f"format = {form!r:.40}; this version reads {FORMAT} alone"
    elif not all(isinstance(one, str) and 0 < len(one) <= _LONGEST and one.isprintable() for one in texts):
        wrong = f"versions = {stated!r:.100}: not names with a version each"
    elif missing := [name for name in _MADE_BY if name not in texts[::2]]:
        wrong = f"versions: {', '.join(missing)} missing"
    if wrong:
        yield failed("versions", MANIFEST, wrong)
        return
    named, own = files.manifest["versions"], versions()
    made = ", ".join(f"{name} {named[name]}" for name in _MADE_BY[::2])
    here = ", ".join(f"{name} {own[name]}" for name in _MADE_BY[::2] if own[name] != named[name])
    yield passed("versions", MANIFEST, f"as stated, {made}; here {here or 'the same'}")


def _checkpoint(files: RunFiles) -> Iterator[Check]:
    replay.first_state(files)
    yield passed("checkpoint", START[0], "the cloud at t = 1 is whole, with its checksums")


def _replay(run: CheckedRun | None) -> Iterator[Check]:
    if run is None:
        raise NotCheckedError("the scenario cannot be read here: see above")
    start = replay.start_of(run.files, run.scenario)
    run.replay, run.model = replay.LogReplay.of(run.files, start), start.model
    first = "x₁ follows from the scenario" if start.derived else "x₁ as the first checkpoint has it"
    updates, algorithm = run.replay.server.updates, run.scenario.algorithm.name
    yield passed("replay", "log", f"taken again to t = {updates} by {algorithm}; {first}")


def _is_log_due(files: RunFiles) -> bool:
    """Tell whether a whole log must be there; where that cannot be told, it is looked for."""
    try:
        return _keeps_log(files)
    except Exception:  # untrusted records: the check of what cannot be read fails by itself
        return True


def _keeps_log(files: RunFiles) -> bool:
    """Tell whether the run, by its own scenario, keeps the log of its gradients when it has ended."""
    scenario: Any = files.manifest["scenario"]
    asked = scenario["records"].get("keep_gradients")
    if files.manifest.get("engine") in ENGINES:
        return asked is True  # a simulation writes one only where it is told to
    return keeps_gradients(asked, scenario["iterations"], files.model()[0]["x"].size)


def _no_log(files: RunFiles, unlogged: bool) -> Iterator[Check]:
    if _keeps_log(files):
        raise UnreadableError("log", "missing, and by its scenario this run keeps its gradients")
    left = "only its end is left" if files.segments else "missing"
    detail = f"{left}: this run did not keep its gradients, so nothing is replayed"
    if not unlogged:
        raise NotCheckedError(f"{detail}; --allow-unlogged takes the final model for claimed")
    yield claimed("log", "log", detail)
