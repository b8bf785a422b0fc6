"""Figures that the accountant keeps: found once, never trusted into less noise, and nowhere unless a program asks."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.accounting import budget as budgets
from common.accounting import kept
from common.accounting.budget import calibrate, keeps, max_charges
from common.accounting.kept import kept_in
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.mechanism.mechanism import Mechanism
from common.models.features import FeatureCache, _head
from common.noise.gaussian import Gaussian
from tests.mechanism_support import NORMALISED, SHUFFLED, WITH_REPLACEMENT, truncated

BUDGET = Budget(1.0, 1e-5)
MECHANISM = Mechanism(None, 100)
ASKED: dict[str, Any] = {
    "mechanism": MECHANISM,
    "releases": 5,
    "shard_size": 100,
}  # rate 1: no grid, and so quick
NO_FIGURES = [
    "",
    "null",
    "true",
    "-1.0",
    "0.0",
    "NaN",
    "Infinity",
    '"1.0"',
    "[]",
    "{}",
    "{",
    "[" * 50_000,
    "1e999",
    "1e-300",
    "1e300",
]


@dataclass
class Texts:
    """A store in memory, or one that answers every question alike."""

    answer: str | None = None
    texts: dict[bytes, str] = field(default_factory=dict)

    def read_text(self, key: bytes) -> str | None:
        return self.answer if self.answer is not None else self.texts.get(key)

    def write_text(self, key: bytes, text: str) -> None:
        self.texts[key] = text


def kind(z: float = 1.0, **changes: Any) -> ReleaseKind:
    return ReleaseKind(replace(replace(MECHANISM, **changes), law=Gaussian(z)), 100)


def forget() -> None:
    """Begin as another process would."""
    for function in (budgets._calibrated, budgets.max_charges):
        function.cache_clear()


@pytest.fixture(autouse=True)
def worth_keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_WORTH", 0.0)
    forget()


def test_what_was_found_once_is_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    for name in ("_least_multiplier", "_last"):
        search = Mock(wraps=getattr(budgets, name))
        monkeypatch.setattr(budgets, name, search)
        searches.append(search)
    store, found, begun = Texts(), [], []
    for _process in range(2):
        forget()
        with kept_in(store):
            z = calibrate(BUDGET, **ASKED)
            found.append((z, max_charges(BUDGET, kind(z))))
        begun.append([search.call_count for search in searches])
    assert found[0] == found[1]
    assert begun[0] == begun[1]
    assert min(begun[0]) > 0


def test_nothing_is_kept_unless_a_program_gives_a_store() -> None:
    store = Texts()
    with kept_in(store):
        pass
    calibrate(BUDGET, **ASKED)
    assert not store.texts
    for room in ("edge", "cloud", "mapa/verification"):  # budgets and checks are computed there
        for path in (Path(__file__).parents[2] / room).rglob("*.py"):
            assert "kept_in" not in path.read_text(encoding="utf-8"), path


@given(answer=st.floats(1e-6, 1e3) | st.integers(-5, 10**7) | st.sampled_from(NO_FIGURES))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_store_says_no_budget_is_passed(answer: float | str) -> None:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    honest = calibrate(BUDGET, **ASKED)
    forget()
    with kept_in(Texts(text)):
        z = calibrate(BUDGET, **ASKED)
        most = max_charges(BUDGET, kind(honest))
    forget()
    assert keeps(BUDGET, kind(z), 5)
    assert z in (honest, answer)
    assert keeps(BUDGET, kind(honest), most) or most == 0


def test_every_input_and_the_accountant_itself_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_least_multiplier", lambda *_: 1.0)
    monkeypatch.setattr(budgets, "keeps", lambda *_: True)
    store = Texts()
    parts = ({"sampler": one} for one in (truncated(100), WITH_REPLACEMENT, SHUFFLED))
    mechanisms = [
        replace(MECHANISM, **part) for part in ({"batch_size": 99}, {"clipping": NORMALISED}, *parts)
    ]
    for changes in ({}, {"releases": 6}, {"shard_size": 101}, *({"mechanism": one} for one in mechanisms)):
        with kept_in(store):
            calibrate(BUDGET, **ASKED | changes)
    for another in (Budget(1.5, 1e-5), Budget(1.0, 1e-6)):
        with kept_in(store):
            calibrate(another, **ASKED)
    assert len(store.texts) == 10
    forget()
    monkeypatch.setattr(kept, "_accountant", lambda: "the next version")
    with kept_in(store):
        calibrate(BUDGET, **ASKED)
    assert len(store.texts) == 11


@pytest.mark.parametrize("part", ["law", "sampler", "clipping", "work"])
def test_what_has_code_that_no_key_can_hold_is_not_kept(part: str) -> None:
    mechanism = replace(MECHANISM, law=Gaussian(1.0))
    base: Any = type(getattr(mechanism, part))
    mine = dataclass(frozen=True)(type("Mine", (base,), {"__module__": "mine"}))
    values = {one.name: getattr(getattr(mechanism, part), one.name) for one in fields(base)}
    other = ReleaseKind(replace(mechanism, **{part: mine(**values)}), 100)
    store = Texts()
    with kept_in(store):
        max_charges(BUDGET, kind(), (Spent(other, 1),))
    assert not store.texts


def test_another_accountant_python_or_library_asks_by_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "__file__", str(tmp_path / "accounting/kept.py"))
    sources = [
        tmp_path / name for name in ("accounting/renyi.py", "noise/gaussian.py", "mechanism/work/own.py")
    ]
    for path in sources:
        path.parent.mkdir(parents=True)
        path.write_text("as it was")
    accountant = kept._accountant.__wrapped__
    names = {accountant()}
    for number, path in enumerate(sources, start=2):
        path.write_text("changed")
        names.add(accountant())
        assert len(names) == number, path
    monkeypatch.setattr(sys, "version", "4.0")
    names.add(accountant())
    for changed in ("numpy", "scipy"):
        monkeypatch.setattr(kept, "_version", lambda library, changed=changed: f"{library == changed}")
        names.add(accountant())
    assert len(names) == 7


# -- on disk ----------------------------------------------------------------------------------------------

KEY, OTHER = bytes(32), bytes(31) + b"1"


def test_a_text_on_disk_is_as_it_was_written_or_absent(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache")
    assert cache.read_text(KEY) is None
    cache.write_text(KEY, '{"ε": 1.0}')
    assert cache.read_text(KEY) == '{"ε": 1.0}'
    (file,) = (tmp_path / "cache").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert cache.read_text(KEY) is None
        file.write_bytes(whole[:place])
        assert cache.read_text(KEY) is None
    made = b"\xff"  # no text, though its head is right
    file.write_bytes(_head(file.name, "text", memoryview(made)) + made)
    assert cache.read_text(KEY) is None
    file.write_bytes(whole)
    file.rename(file.with_name(f"{OTHER.hex()}.text"))  # of another question
    assert cache.read_text(OTHER) is None


def test_texts_are_bounded_and_links_and_folders_of_others_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = FeatureCache(tmp_path / "cache")
    monkeypatch.setattr("common.models.features._MOST_TEXTS", 3)
    for number in range(10):
        cache.write_text(bytes([number]) * 32, "1.0")
    assert len(list(cache.folder.iterdir())) == 3
    cache.write_text(KEY, "1" * (1 << 17))  # too long
    assert cache.read_text(KEY) is None
    cache.write_text(KEY, "1.0")
    file = cache.folder / f"{KEY.hex()}.text"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert cache.read_text(KEY) is None
    me = os.geteuid()
    cache.write_text(OTHER, "1.0")
    with monkeypatch.context() as somebody:
        somebody.setattr("os.geteuid", lambda: me + 1)
        assert cache.read_text(OTHER) is None
    assert cache.read_text(OTHER) == "1.0"
    cache.folder.chmod(0o777)
    cache.write_text(OTHER, "2.0")
    assert cache.read_text(OTHER) == "1.0"
