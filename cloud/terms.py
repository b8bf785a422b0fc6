"""What the cloud asks of edges, and what it knows of each; pure."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import ConfigurationError
from common.messages import Hello
from common.noise import LAWS, Gaussian, NoiseLaw, noise_law
from common.quantities import EdgeId


class BelowFloorError(ConfigurationError):
    """An edge wants more privacy than the run can bear: everybody's learning rate would be ruined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the cloud asks of edges and of itself; the constants of the algorithm are in the schedule."""

    edges: int  # K: how many shards there are to deal
    iterations: int  # T
    private: bool  # False for ASGD and CSGD: nobody clips or noises
    noise: str  # the run's law
    epsilons: tuple[float, ...] = ()  # ε_k where a hello leaves it open, cycled over k
    noise_multipliers: tuple[float, ...] = ()  # z_k likewise, for the gaussian law
    noised_dimension: int = 1  # how many coordinates η has
    epsilon_floor: float = 0.0
    noise_multiplier_ceiling: float = float("inf")
    edges_at_least: int = 1  # hellos to wait for before the first model is sent
    evaluate_every: int = 0  # 0: never
    fifo_capacity: int = 1024

    def law(self, hello: Hello, index: int) -> NoiseLaw:
        """Return how edge k will noise: by its own hello, else as the run's scenario says."""
        name = hello.noise or self.noise
        epsilon, multiplier = hello.epsilon, hello.noise_multiplier
        if epsilon is None and multiplier is None and name == self.noise:
            if name == "gaussian" and self.noise_multipliers:
                multiplier = self.noise_multipliers[index % len(self.noise_multipliers)]
            elif self.epsilons:
                epsilon = self.epsilons[index % len(self.epsilons)]
        return noise_law(name, epsilon=epsilon, noise_multiplier=multiplier)

    def moment(self, law: NoiseLaw) -> float:
        """Return v_k of a law; raise BelowFloorError where it is more than the run bears.

        γ knows an edge's noise by v alone, so the run's limit holds for v whatever law the edge chose.
        """
        epsilon, multiplier = getattr(law, "epsilon", None), getattr(law, "noise_multiplier", None)
        if epsilon is not None and epsilon < self.epsilon_floor:
            raise BelowFloorError(
                f"epsilon = {epsilon}: must be at least {self.epsilon_floor}, this run's privacy.epsilon_floor"
            )
        if multiplier is not None and multiplier > self.noise_multiplier_ceiling:
            raise BelowFloorError(
                f"noise_multiplier = {multiplier}: must be at most {self.noise_multiplier_ceiling},"
                " this run's privacy.noise_multiplier_ceiling"
            )
        moment, bearable = law.relative_second_moment(self.noised_dimension), self.bearable_moment
        if moment > bearable:
            raise BelowFloorError(
                f"noise = {law.name!r}: has E‖η‖²/ΔS² = {moment:.6g}, which must be at most {bearable:.6g}"
                f" by this run's privacy.{self._limiting_key}"
            )
        return moment

    @property
    def _limiting_key(self) -> str:
        return "noise_multiplier_ceiling" if self.noise == Gaussian.name else "epsilon_floor"

    @property
    def bearable_moment(self) -> float:
        """v of the run's own law at its floor of ε, or ceiling of z; infinite where none is set."""
        limit: float = getattr(self, self._limiting_key)
        if not 0 < limit < float("inf"):
            return float("inf")
        return LAWS[self.noise](limit).relative_second_moment(self.noised_dimension)


@dataclass(slots=True)
class EdgeAccount:
    """What the cloud knows of one edge."""

    edge_id: EdgeId
    index: int  # k
    last_sequence: int = 0  # last sequence applied (or refused for good)
    applied: int = 0
    present: bool = True
    exhausted: bool = False  # said that its privacy budget is spent; only a new hello takes it back
    moment: float = 0.0  # v_k
    law: NoiseLaw | None = None  # how it said that it noises
    reopenings: int = 0  # how often its noise has opened a stage again
