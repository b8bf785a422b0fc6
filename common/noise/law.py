"""The noise law port: everything that is asked of a law of η. A frozen value with pure functions; one law, one file.

Its fields are its parameters (made by `parameter`). What a law guarantees is stated by the law and nowhere
else; how releases compose over a run is the accountant's business, which knows two kinds of release: of a pure
ε, and of Gaussian noise with a multiplier (`Guarantee`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from common.mechanism.guarantee import Adjacency, Guarantee, Norm
from common.mechanism.part import Part, check_vector, option_fields
from common.options import Range

if TYPE_CHECKING:
    from common.mechanism.mechanism import Mechanism

Noise = npt.NDArray[np.float64]

# Parameters lie between these: accountants square them and divide by that, and η must fit float32.
LEAST_PARAMETER, LARGEST_PARAMETER = 1e-9, 1e9

# A gradient is refused where an honest edge makes one so long with a probability below e^-30 < 1e-13.
TAIL_NATS = 30.0


def parameter(about: str, *, symbol: str, larger_is_noisier: bool, **limits: Any) -> Any:
    """Declare a field of a law as a parameter; its annotation must be float.

    Limits are `above`, `at_least`, `below` and `at_most`; without any, from LEAST_PARAMETER to LARGEST_PARAMETER.
    """
    limits = limits or {"at_least": LEAST_PARAMETER, "at_most": LARGEST_PARAMETER}
    allowed = Range(about=about, symbol=symbol, larger_is_noisier=larger_is_noisier, **limits)
    return dataclasses.field(metadata={"option": allowed})


class NoiseLaw(Part):
    """What every law has. A subclass is a frozen dataclass and must set `norm`.

    `sensitivity` arguments are ΔS = 2C/b, measured in `norm`: each law knows how its own parameters divide it.
    """

    __slots__ = ()

    norm: ClassVar[Norm]  # that must be clipped to C; there is no default
    protects: ClassVar[bool] = True  # False: no release guarantees anything, as `guarantee` says
    implied: ClassVar[bool] = False  # meant where its parameters are given and no law is named
    calibrated: ClassVar[str | None] = None  # the parameter, a noise multiplier, that a total budget can set
    adds_up: ClassVar[bool] = False  # Gaussian of its noise_multiplier: releases may be integers, and summed
    audit_dimension: ClassVar[int] = 16  # N at which its defects are easiest to see

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "adds_up" not in cls.__dict__:
            cls.adds_up = False  # each class says it of itself
        if "draw" in cls.__dict__ and "draw_block" not in cls.__dict__:
            setattr(cls, "draw_block", NoiseLaw.__dict__["draw_block"])  # noqa: B010 - another law's draws otherwise

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        """Draw η for the sensitivity ΔS, as a new array."""
        raise NotImplementedError

    def relative_second_moment(self, dimension: int) -> float:
        """Return v = E‖η‖²/ΔS², so that Δ_b = σ²/b + ΔS²·v; the norm is L2."""
        raise NotImplementedError

    def relative_tail(self, dimension: int) -> float:
        """Return r such that ‖η‖, in L2, exceeds r·ΔS with a probability of at most e^-TAIL_NATS."""
        raise NotImplementedError

    def relative_tail_of_mean(self, dimension: int, count: int) -> float:  # noqa: ARG002
        """Return the same for the mean of `count` draws, but for count·e^-TAIL_NATS: no longer than the longest."""
        return self.relative_tail(dimension)

    def guarantee(self, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:
        """State what one release guarantees where all coordinates are noised."""
        raise NotImplementedError

    def promise(self) -> Guarantee:
        """Return what every release must guarantee, zero-out, where an edge's operator asks for these parameters."""
        from common.mechanism.mechanism import Mechanism  # which has a law itself

        return Mechanism(self, 1).guarantee(Adjacency.ZERO_OUT)

    @classmethod
    def draw_block(
        cls,
        laws: Sequence[Self],
        sensitivities: npt.NDArray[np.float64],
        dimension: int,
        noise: np.random.Generator,
        norms: np.random.Generator,
    ) -> Noise:
        """Draw a row of η for each law; a law may do it faster in one go.

        The numbers must not depend on how many rows are drawn at once: `norms` is a second generator for that.
        """
        del norms
        rows = np.empty((len(laws), dimension))
        for row, law, sensitivity in zip(rows, laws, sensitivities, strict=True):
            eta = law.draw(float(sensitivity), dimension, noise)
            check_vector(law, "privacy.noise", eta, dimension)
            row[:] = eta
        return rows

    def log_ratio(self, sensitivity: float, releases: Noise, zeroed: Noise, there: Noise) -> Noise:
        """Return log p(ν | there) − log p(ν | zeroed) of each release ν, for an audit; or what ranks them alike.

        Without the law's density: how far ν lies along the line from one centre to the other.
        """
        del sensitivity
        along: Noise = ((releases - (zeroed + there) / 2) * (there - zeroed)).sum(axis=-1)
        return along

    @property
    def parameters(self) -> dict[str, float]:
        """Its parameters by name."""
        return self.option_values  # type: ignore[return-value]

    @property
    def strength(self) -> str:
        """Its parameters in words."""
        symbols = {field.name: field.metadata["option"].symbol for field in option_fields(self)}
        return ", ".join(f"{symbols[name]} = {value:g}" for name, value in self.parameters.items())


class PureLaw(NoiseLaw):
    """A law of density ∝ exp(−ε‖η‖/ΔS) in its own norm: ε is what a move of ΔS = 2C/b costs."""

    __slots__ = ()
    epsilon: float

    def guarantee(self, mechanism: Mechanism, adjacency: Adjacency) -> Guarantee:
        moves = mechanism.sensitivity_over_clip(adjacency) * mechanism.batch_size / 2
        return Guarantee(adjacency, epsilon=self.epsilon * moves)

    def promise(self) -> Guarantee:
        return Guarantee(Adjacency.ZERO_OUT, epsilon=self.epsilon)


class RadialLaw(NoiseLaw):
    """A law of a uniform direction in L2, and a length of ΔS/ε times what `radii` draws."""

    __slots__ = ()
    norm: ClassVar[Norm] = Norm.L2
    epsilon: float

    @staticmethod
    def radii(rng: np.random.Generator, dimension: int, count: int | None = None) -> Any:
        """Draw a length in units of ΔS/ε, or an array of so many."""
        raise NotImplementedError

    def draw(self, sensitivity: float, dimension: int, rng: np.random.Generator) -> Noise:
        radius = self.radii(rng, dimension) * sensitivity / self.epsilon
        direction = rng.standard_normal(dimension)
        direction *= radius / math.sqrt(float(direction @ direction))
        return direction

    @classmethod
    def draw_block(
        cls,
        laws: Sequence[Self],
        sensitivities: npt.NDArray[np.float64],
        dimension: int,
        noise: np.random.Generator,
        norms: np.random.Generator,
    ) -> Noise:
        lengths = cls.radii(norms, dimension, len(laws)) * sensitivities
        lengths /= np.array([law.epsilon for law in laws])
        rows = noise.standard_normal((len(laws), dimension))
        rows *= (lengths / np.sqrt(np.vecdot(rows, rows)))[:, None]
        return rows


def gamma_tail(dimension: int) -> float:
    """Return what Gamma(N, 1) exceeds with a probability of at most e^-TAIL_NATS: its sub-gamma bound."""
    return dimension + math.sqrt(2 * dimension * TAIL_NATS) + TAIL_NATS


def distances(releases: Noise, zeroed: Noise, there: Noise) -> tuple[Noise, Noise]:
    """Return how far each release lies from either centre, in L2."""
    return np.linalg.norm(releases - zeroed, axis=-1), np.linalg.norm(releases - there, axis=-1)
