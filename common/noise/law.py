"""The noise law port: all that anybody asks of a law of η. A frozen value with pure functions; one law, one file.

Its fields are its parameters (made by `parameter`). What a law guarantees is stated by the law and nowhere
else; how releases compose over a run is the accountant's business, which knows two kinds of release: of a pure
ε, and of Gaussian noise with a multiplier (`Guarantee`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from common.mechanism.guarantee import Adjacency, Guarantee, Norm
from common.options import Range

if TYPE_CHECKING:
    from common.mechanism.mechanism import Mechanism

Noise = npt.NDArray[np.float64]

# Parameters lie between these: accountants square them and divide by that, and η must fit float32.
LEAST_PARAMETER, LARGEST_PARAMETER = 1e-9, 1e9

# A gradient is refused where an honest edge makes one so long with a probability below e^-30 < 1e-13.
TAIL_NATS = 30.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What a parameter's values mean; kept in the metadata of its field."""

    symbol: str  # in tables and statements
    larger_is_noisier: bool  # a run limits it by <name>_ceiling; otherwise by <name>_floor


def parameter(about: str, *, symbol: str, larger_is_noisier: bool, **limits: Any) -> Any:
    """Declare a field of a law as a parameter; its annotation must be float.

    Limits are `above`, `at_least`, `below` and `at_most`; without any, from LEAST_PARAMETER to LARGEST_PARAMETER.
    """
    allowed = Range(about=about, **(limits or {"at_least": LEAST_PARAMETER, "at_most": LARGEST_PARAMETER}))
    return dataclasses.field(metadata={"option": allowed, "reading": Reading(symbol, larger_is_noisier)})


class NoiseLaw:
    """What every law has. A subclass is a frozen dataclass and must set `norm`.

    `sensitivity` arguments are ΔS = 2C/b, measured in `norm`: each law knows how its own parameters divide it.
    """

    __slots__ = ()

    name: ClassVar[str]  # of a law of one's own: "package.module:Class", filled in
    norm: ClassVar[Norm]  # that must be clipped to C; there is no default
    protects: ClassVar[bool] = True  # False: no release guarantees anything, as `guarantee` says
    implied: ClassVar[bool] = False  # meant where its parameters are given and no law is named
    calibrated: ClassVar[str | None] = None  # the parameter, a noise multiplier, that a total budget can set
    audit_dimension: ClassVar[int] = 16  # N at which its defects are easiest to see

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = f"{cls.__module__}:{cls.__qualname__}"

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
        """State what one release guarantees."""
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
        rows = [law.draw(float(s), dimension, noise) for law, s in zip(laws, sensitivities, strict=True)]
        return np.array(rows, np.float64).reshape(len(laws), dimension)

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
        return {field.name: getattr(self, field.name) for field in _parameter_fields(self)}

    @property
    def strength(self) -> str:
        """Its parameters in words."""
        shown = (
            (field.metadata["reading"].symbol, getattr(self, field.name)) for field in _parameter_fields(self)
        )
        return ", ".join(f"{symbol} = {value:g}" for symbol, value in shown)


def _parameter_fields(law: NoiseLaw) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(law) if "reading" in field.metadata]  # type: ignore[arg-type]


def radial(radius: float, dimension: int, rng: np.random.Generator) -> Noise:
    """Return a vector of this L2 norm and a uniform direction."""
    direction = rng.standard_normal(dimension)
    direction *= radius / math.sqrt(float(direction @ direction))
    return direction


def radial_block(radii: Noise, dimension: int, rng: np.random.Generator) -> Noise:
    """Return a row of each of these L2 norms, all in uniform directions."""
    rows = rng.standard_normal((len(radii), dimension))
    rows *= (radii / np.sqrt(np.vecdot(rows, rows)))[:, None]
    return rows


def distances(releases: Noise, zeroed: Noise, there: Noise) -> tuple[Noise, Noise]:
    """Return how far each release lies from either centre, in L2."""
    return np.linalg.norm(releases - zeroed, axis=-1), np.linalg.norm(releases - there, axis=-1)
