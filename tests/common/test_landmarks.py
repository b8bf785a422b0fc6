"""Landmarks beside the strokes: alike for every party, mirrored, in colour, and within what an edge may take."""

from __future__ import annotations

import functools
import math
import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from common.errors import ConfigurationError
from common.models import scattering_softmax as likeness
from common.models.landmarks import LANDMARKS, draw_landmarks
from common.models.registry import make_model
from common.models.scattering import CHANNELS, Scattering, mirrored
from common.models.scattering_softmax import LARGEST_VIEW, ScatteringSoftmax, Seeing, in_colour, seen, view

GREY, COLOUR = (16, 16), (3, 16, 16)


@functools.cache
def made(shape: tuple[int, ...], **options: Any) -> ScatteringSoftmax:
    return ScatteringSoftmax(shape=shape, classes=10, **options)


def blobs(**options: Any) -> ScatteringSoftmax:
    return made(GREY, landmarks=40, landmarks_of="blobs", **options)


def leaves(**options: Any) -> ScatteringSoftmax:
    return made(COLOUR, landmarks=40, landmarks_of="leaves", **options)


def images(count: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Smooth pictures, unlike any landmark: waves of slowly changing phase."""
    y, x = np.mgrid[0 : shape[-2], 0 : shape[-1]] / 16
    planes = shape[0] if len(shape) == 3 else 1
    number, plane = np.arange(count)[:, None, None, None], np.arange(planes)[None, :, None, None]
    waves = np.sin(2 * math.pi * ((1 + number % 3) * x + (number // 3 - 1) * y) + plane + 0.3 * number)
    return (0.5 + 0.4 * waves).reshape(count, -1).astype(np.float32)


@pytest.mark.parametrize("name", LANDMARKS)
def test_a_set_is_drawn_from_fixed_numbers_and_its_first_pictures_do_not_depend_on_the_count(
    name: str,
) -> None:
    drawn = draw_landmarks(name, 12, (28, 28))
    assert drawn.shape == (12, LANDMARKS[name].planes, 28, 28)
    assert drawn.dtype == np.float32
    np.testing.assert_array_equal(drawn[:5], draw_landmarks(name, 5, (28, 28)))
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    assert drawn.std(axis=(1, 2, 3)).min() > 0.01  # none is blank
    assert len({picture.tobytes() for picture in drawn}) == 12


PINNED = {  # every party must get these: another number needs another VERSION of the transform
    "blobs": (2.0401, -1.4704, -1.8798, 0.2933),
    "leaves": (-7.5891, -7.3763, -2.4127, -1.8525),
    "mirrored leaves": (-8.2501, -6.1845, -3.9468, -6.1219),
}


@pytest.mark.parametrize("name", PINNED)
def test_features_are_the_same_on_every_machine_but_for_rounding(name: str) -> None:
    model = {"blobs": blobs(), "leaves": leaves(), "mirrored leaves": leaves(mirror=True)}[name]
    shape = GREY if name == "blobs" else COLOUR
    found = model.features(images(4, shape)).astype(np.float64)
    weights = np.cos(np.arange(found.shape[1]))
    np.testing.assert_allclose(found @ weights, PINNED[name], atol=5e-3)


@pytest.mark.parametrize("bias", [None, 0.1])
def test_every_feature_vector_has_the_length_that_the_options_say(bias: float | None) -> None:
    for model, shape in ((blobs(bias=bias), GREY), (leaves(bias=bias, mirror=True), COLOUR)):
        features = model.features(images(9, shape))
        assert model.feature_length == math.sqrt(40)
        np.testing.assert_allclose(np.linalg.norm(features[:, :-1], axis=1), model.feature_length, rtol=1e-5)
        expected = 1 if bias is None else bias * model.feature_length
        np.testing.assert_allclose(features[:, -1], expected, rtol=1e-6)
    assert made(GREY, landmarks=0).feature_length is None


# -- the mirror ---------------------------------------------------------------------------------------


def test_a_mirror_twice_is_no_mirror_and_turns_angles_and_sides() -> None:
    places = mirrored((4, 5))
    assert len(places) == CHANNELS * 20
    np.testing.assert_array_equal(places[places], np.arange(len(places)))
    scattering = Scattering((16, 20))
    image = np.random.default_rng(1).random((1, 16, 20), dtype=np.float32)
    (_, plain), *_ = scattering(image)
    (_, turned), *_ = scattering(image[:, :, ::-1].copy())
    first = 17 * 20  # order 2 is taken at every second pixel, of which a mirror takes the others
    np.testing.assert_allclose(turned.ravel()[: 9 * 20], plain.ravel()[places][: 9 * 20], atol=2e-6)
    assert np.corrcoef(turned.ravel()[first:], plain.ravel()[places][first:])[0, 1] > 0.9


@pytest.mark.parametrize("shape", [GREY, COLOUR, (16, 20)])
def test_folding_keeps_the_products_of_mirrored_means(shape: tuple[int, ...]) -> None:
    """⟨(φ + Πφ)/2, (ψ + Πψ)/2⟩ is what is left after one of each pair is dropped."""
    of = "leaves" if len(shape) == 3 else "blobs"
    plain, folded = (
        Seeing(shape, 10, of, mirror, "rgb" if len(shape) == 3 else None) for mirror in (False, True)
    )
    scattering = Scattering(plain.sides)
    pictures = images(6, shape)
    (_, phi), *_ = seen(pictures, plain, scattering)
    (_, kept), *_ = seen(pictures, folded, scattering)
    assert kept.shape[1] == folded.kept < plain.kept == phi.shape[1]
    one = mirrored(scattering.out)
    other = np.concatenate([one + plane * len(one) for plane in range(plain.planes)])
    mean = (phi + phi[:, other]) / 2
    np.testing.assert_allclose(kept @ kept.T, mean @ mean.T, rtol=1e-4)


# -- colour -------------------------------------------------------------------------------------------


def test_grey_has_no_colour_and_rgb_stays_as_it_is() -> None:
    grey = np.repeat(np.random.default_rng(0).random((2, 1, 4, 4), dtype=np.float32), 3, axis=1)
    yuv = in_colour(grey, "yuv")
    np.testing.assert_allclose(yuv[:, 0], grey[:, 0], atol=1e-6)
    np.testing.assert_allclose(yuv[:, 1:], 0, atol=1e-6)
    assert in_colour(grey, "rgb") is grey
    red = np.array([1, 0, 0], np.float32).reshape(1, 3, 1, 1)
    np.testing.assert_allclose(in_colour(red, "yuv").ravel(), [0.299, -0.147, 0.615], atol=1e-3)


def test_colour_images_are_seen_in_yuv_unless_the_options_say_otherwise() -> None:
    pictures = images(3, COLOUR)
    default, yuv, rgb = (leaves(**o).features(pictures) for o in ({}, {"colour": "yuv"}, {"colour": "rgb"}))
    np.testing.assert_array_equal(default, yuv)
    assert np.abs(yuv - rgb).max() > 0.1


# -- options and caps ---------------------------------------------------------------------------------


def test_a_model_is_made_without_drawing_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """So an edge learns what a welcome costs before it pays."""
    monkeypatch.setattr(likeness, "draw_landmarks", lambda *_: pytest.fail("drawn"))
    model = make_model(
        "scattering",
        shape=(3, 32, 32),
        classes=10,
        options={"landmarks": 1999, "landmarks_of": "leaves", "mirror": True},
    )
    assert isinstance(model, ScatteringSoftmax)
    assert 200 << 20 < model.features_bytes(0) <= LARGEST_VIEW
    with pytest.raises(ConfigurationError, match=r"landmarks = 2000: takes about \d+ MB for images of 32×32"):
        make_model(
            "scattering", shape=(3, 32, 32), classes=10, options={"landmarks": 2000, "landmarks_of": "leaves"}
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "landmarks", "of"), [(GREY, 300, "blobs"), (COLOUR, 200, "leaves"), (GREY, 300, "strokes")]
)
def test_no_view_takes_more_than_was_estimated(shape: tuple[int, ...], landmarks: int, of: str) -> None:
    model = ScatteringSoftmax(shape=shape, classes=10, landmarks=landmarks, landmarks_of=of)
    pictures = images(130, shape)
    view.cache_clear()
    tracemalloc.start()
    try:
        model.features(pictures)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken <= model.features_bytes(len(pictures)) <= 4 * taken
