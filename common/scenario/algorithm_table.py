"""[algorithm], and what the algorithm that it names has to say to it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from common.algorithms import AlgorithmDescription
from common.errors import require
from common.mechanism.clipping import Clipping
from common.mechanism.guarantee import LARGEST_BOUND, LEAST_BOUND
from common.options import check_belonging
from common.problem import NOMINAL, measured_constants
from common.scenario.tables import Fraction, NonNegative, Positive, Table


class AlgorithmTable(Table):
    """[algorithm]: constants that any algorithm may ask for, and beside them the options of the one that is named.

    What is left open follows from the model and the data set where they are known.
    """

    model_config = ConfigDict(extra="allow")  # the algorithm's own options: Scenario asks it about them
    later = ("average", "average_decay", "average_from", "weights")

    name: str = Field(
        "mapa", min_length=1, max_length=200, description="see `mapa algorithms`; or package.module:Class"
    )
    theta: Fraction = Field(0.5, description="θ, reduction ratio")
    smoothness: Positive | None = Field(None, description="L")
    sigma: NonNegative | None = Field(None, description="σ")
    delta: Fraction = Field(1e-3, description="δ of Theorem 3 alone; the privacy δ is privacy.total_delta")
    tau_max: int | None = Field(None, ge=0, le=10_000_000, description="τ_max; absent: the number of edges")
    tau_max_from: Literal["configured", "measured"] = Field(
        "configured", description="measured: each new stage takes τ_max from the staleness of recent updates"
    )
    loss_gap: Positive | None = Field(None, description="f₀ = f(x₁) − f(x*)")
    radius: Positive | None = Field(None, description="R")
    first_clip: float | None = Field(
        None,
        ge=LEAST_BOUND,
        le=LARGEST_BOUND,
        allow_inf_nan=False,
        description="AUDP's bound, MAPA's first one; absent: Theorem 3",
    )
    rule: Literal["theta", "table"] = Field(
        "theta", description="how ΔS shrinks: θΔS, or the parameter table's"
    )
    average: Literal["none", "ema", "tail"] = Field(
        "none", description="the result is x, or an average of models; see docs/algorithms.md"
    )
    average_decay: float | None = Field(
        None, ge=0, lt=1, allow_inf_nan=False, description="β of average = ema; absent: 0.99"
    )
    average_from: float | None = Field(
        None, ge=0, lt=1, allow_inf_nan=False, description="share of T before average = tail; absent: 0.5"
    )

    weights: Literal["none", "noise"] | None = Field(
        None,
        description="noise: gradients weigh ∝ 1/z_k²; absent: so with privacy.pace = own, else all alike",
    )

    def check(self) -> None:
        """Refuse a parameter of an average that was not asked for."""
        for key, kind in (("average_decay", "ema"), ("average_from", "tail")):
            value = getattr(self, key)
            if value is not None and self.average != kind:
                raise ValueError(f"algorithm.{key} = {value}: only with algorithm.average = {kind!r}")

    @property
    def options(self) -> dict[str, Any]:
        """The algorithm's own options."""
        return dict(self.model_extra or {})


def check_required(table: AlgorithmTable, described: AlgorithmDescription) -> None:
    """Refuse to leave out a shared key that the algorithm asks for."""
    for key in described.requires:
        if getattr(table, key, None) is None:
            raise ValueError(f"algorithm.{key}: needed with algorithm.name = {described.name!r}")


def check_clipping(clipping: Clipping, described: AlgorithmDescription, *, weighted: bool) -> None:
    """Refuse an algorithm without the clipping that it reads, and a coordinate that no algorithm reads."""
    given, needed = clipping.name, described.clipping
    fits = needed is None or given == needed
    require(fits, "privacy.clipping", repr(given), f"{needed!r} with algorithm.name = {described.name!r}")
    if clipping.extra and weighted:
        raise ValueError(
            f"privacy.clipping = {given!r}: not with weights by noise, which privacy.pace = 'own' has unless told"
            " otherwise and which would scale the count, too; set algorithm.weights = 'none'"
        )
    if needed is None and clipping.extra:
        raise ValueError(
            f"privacy.clipping = {given!r}: needs an algorithm that reads the count, such as"
            f" algorithm.name = 'quantile', not {described.name!r}"
        )


def filled(
    table: AlgorithmTable, described: AlgorithmDescription, *, model: str, dataset: str, edges: int
) -> AlgorithmTable:
    """Check the algorithm's options; fill in what the known constants say, and ask for those that are unknown."""
    for option in described.options:
        if option.name in AlgorithmTable.model_fields:
            raise ValueError(
                f"algorithm.name = {described.name!r}: its option {option.name!r} is a key that every"
                " algorithm has; read it from the problem"
            )
    options = described.resolve(table.options, AlgorithmTable.model_fields)
    shared = table.model_dump(exclude=set(table.options))
    check_belonging(described.options, {**shared, **options}, "algorithm")
    described.make(options)  # whatever it does not like, it says before anything is sent
    known = measured_constants(model, dataset)
    if known is None and not described.needs_constants:
        known = NOMINAL
    constants: dict[str, Any] = {}
    for key in ("smoothness", "sigma", "radius", "loss_gap"):
        if getattr(table, key) is None:
            if known is None:
                raise ValueError(
                    f"algorithm.{key}: needed, since no constants are known for model {model!r} on {dataset!r}"
                )
            constants[key] = getattr(known, key)
    if table.tau_max is None:
        constants["tau_max"] = 1 if described.centralised else edges
    whole = AlgorithmTable.model_validate({**shared, **constants, **options})
    bounded = whole.first_clip is not None or bool(whole.sigma)
    require(bounded, "algorithm.sigma", whole.sigma, "greater than 0 where no first_clip is given")
    return whole
