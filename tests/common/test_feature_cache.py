"""Features on disk: the same numbers again, and nothing that somebody else put there."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from common.datasets.dataset import Samples
from common.errors import ConfigurationError
from common.models.features import FeatureCache, content_key, features_of, user_cache
from common.models.linear import Softmax
from common.models.scattering_softmax import ScatteringSoftmax

ROWS, COLUMNS = 5, 3
KEY = bytes(range(32))
HEADER = 48


def numbers(seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).random((ROWS, COLUMNS), dtype=np.float32)


def kept(folder: Path) -> Path:
    (path,) = folder.glob("*.features")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> FeatureCache:
    return FeatureCache(tmp_path / "cache")


def samples(count: int = 6, seed: int = 0) -> Samples:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 256), np.uint8)
    return Samples(pixels, np.zeros(count, np.int64))


def scattering(**options: Any) -> ScatteringSoftmax:
    return ScatteringSoftmax(shape=(16, 16), classes=10, **{"landmarks": 20, **options})


def test_what_is_written_is_read_again_by_this_user_alone(cache: FeatureCache) -> None:
    assert cache.read(KEY, ROWS, COLUMNS) is None
    cache.write(KEY, numbers())
    found = cache.read(KEY, ROWS, COLUMNS)
    assert found is not None
    np.testing.assert_array_equal(found, numbers())
    assert (found.dtype, found.flags.writeable) == (np.float32, True)
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(kept(cache.folder).stat().st_mode) == 0o600
    assert [path.suffix for path in cache.folder.iterdir()] == [".features"]


def test_features_are_made_once(cache: FeatureCache, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = scattering(), samples()
    made = features_of(model, data, cache)
    np.testing.assert_array_equal(made, model.features(data.values()))
    monkeypatch.setattr(ScatteringSoftmax, "features", lambda *_: pytest.fail("made again"))
    np.testing.assert_array_equal(features_of(scattering(), samples(), cache), made)


def test_features_do_not_depend_on_the_number_of_threads_which_say_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, data = scattering(), samples(300)
    monkeypatch.setattr("common.models.features._UNPACKED_ROWS", 128)
    monkeypatch.setattr("common.models.features._QUIET", 0)
    said: list[str] = []
    found = features_of(model, data, threads=3, say=said.append)
    np.testing.assert_array_equal(found, features_of(model, data))
    np.testing.assert_allclose(found, model.features(data.values()), atol=1e-4)
    assert said == [f"computing features of 'scattering': {stop} of 300 records" for stop in (256, 300)]
    assert not len(features_of(model, samples(0)))


def test_cheap_features_are_never_kept(cache: FeatureCache) -> None:
    model, data = Softmax(shape=(16, 16), classes=10), samples()
    np.testing.assert_array_equal(features_of(model, data, cache), model.features(data.values()))
    assert not cache.folder.exists()


def test_the_key_follows_every_pixel_and_every_option() -> None:
    changed = samples()
    changed.inputs[3, 100] ^= 1
    models = [
        scattering(),
        scattering(landmarks=21),
        scattering(landmarks_of="blobs"),
        scattering(mirror=True),
        scattering(bias=0.1),
        scattering(landmarks=0),
    ]
    keys = {content_key(model, samples()) for model in models}
    keys |= {content_key(models[0], other) for other in (changed, samples(5))}
    keys.add(content_key(models[0], Samples(samples().values(), samples().labels)))
    assert len(keys) == len(models) + 3
    assert content_key(scattering(), samples()) == content_key(models[0], samples())


def changed(path: Path) -> None:
    """One bit of one number: finite, and wrong."""
    content = bytearray(path.read_bytes())
    content[HEADER] ^= 1
    path.write_bytes(content)


def swapped(path: Path) -> None:
    """The whole, sound file of another key."""
    other = FeatureCache(path.parent.parent / "other")
    other.write(bytes(32), numbers(1))
    kept(other.folder).replace(path)


def reshaped(path: Path) -> None:
    """As many numbers in another shape, written under this key."""
    FeatureCache(path.parent).write(KEY, numbers().reshape(COLUMNS, ROWS))


def not_a_number(path: Path) -> None:
    """Written under this key, with a checksum that fits."""
    wrong = numbers()
    wrong[ROWS - 1, 0] = np.nan
    FeatureCache(path.parent).write(KEY, wrong)


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


ATTACKS: dict[str, Callable[[Path], object]] = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "empty": lambda path: path.write_bytes(b""),
    "changed": changed,
    "swapped": swapped,
    "reshaped": reshaped,
    "not a number": not_a_number,
    "a link": a_link,
    "a pipe": instead(os.mkfifo),
    "a folder": instead(os.mkdir),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_file_that_is_not_what_was_written_counts_as_absent(cache: FeatureCache, attack: str) -> None:
    cache.write(KEY, numbers())
    ATTACKS[attack](kept(cache.folder))
    assert cache.read(KEY, ROWS, COLUMNS) is None
    cache.write(KEY, numbers())
    found = cache.read(KEY, ROWS, COLUMNS)
    assert (found is None) is (attack == "a folder")


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none/such")):
        cache = FeatureCache(folder)
        cache.write(KEY, numbers())
        assert cache.read(KEY, ROWS, COLUMNS) is None
        assert features_of(scattering(), samples(), cache).shape == (6, 21)


def test_a_folder_that_others_may_write_to_is_left_alone(cache: FeatureCache) -> None:
    cache.folder.mkdir()
    cache.folder.chmod(0o777)
    cache.write(KEY, numbers())
    assert not list(cache.folder.iterdir())


def test_the_least_recently_used_goes_where_room_is_needed(tmp_path: Path) -> None:
    size = HEADER + 4 * ROWS * COLUMNS
    cache = FeatureCache(tmp_path, most_bytes=2 * size)
    keys = [bytes([number]) * 32 for number in range(3)]
    for age, key in enumerate(keys[:2]):
        cache.write(key, numbers())
        os.utime(tmp_path / f"{key.hex()}.features", (age, age))
    assert cache.read(keys[0], ROWS, COLUMNS) is not None  # so the other one is the older
    (tmp_path / "left.tmp").write_bytes(b"of a process that was killed")
    os.utime(tmp_path / "left.tmp", (0, 0))
    (tmp_path / "note.txt").write_text("not ours")
    cache.write(keys[2], numbers())
    assert [cache.read(key, ROWS, COLUMNS) is not None for key in keys] == [True, False, True]
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".features"} == {"note.txt"}
    FeatureCache(tmp_path / "small", most_bytes=size - 1).write(KEY, numbers())
    assert not (tmp_path / "small").exists()


def test_where_the_cache_is(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    found = user_cache(home)
    assert found is not None
    assert (found.folder, found.most_bytes) == (tmp_path / ".cache" / "mapa", 4 << 30)
    assert user_cache({**home, "XDG_CACHE_HOME": "/x"}) == FeatureCache(Path("/x/mapa"))
    assert user_cache({**home, "MAPA_CACHE_DIR": "/y", "MAPA_CACHE_MB": "7"}) == FeatureCache(
        Path("/y"), 7 << 20
    )
    assert user_cache({}) is None
    assert user_cache({**home, "MAPA_CACHE_MB": "0"}) is None
    for wrong in ("-1", "1.5", "lots", "9" * 50):
        with pytest.raises(ConfigurationError, match="MAPA_CACHE_MB = "):
            user_cache({"MAPA_CACHE_MB": wrong})
