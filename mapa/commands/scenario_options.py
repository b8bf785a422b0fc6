"""Options of every command that trains with a scenario."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from common.scenario.scenario import Scenario
from mapa.commands import options
from mapa.scenario_files import load_scenario, read_scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOptions:
    """What to change in the scenario; numbers that may be lists are kept as text, and the scenario checks them."""

    changes: options.Changes = None
    seed: Annotated[int | None, typer.Option(help="seed, instead of the scenario's")] = None
    edges: Annotated[int | None, typer.Option(help="K, number of edges, instead of the scenario's")] = None
    iterations: Annotated[
        int | None, typer.Option(help="T, number of updates, instead of the scenario's")
    ] = None
    links: Annotated[
        str | None,
        typer.Option(help="delay to the broker: lan, wifi, 5g, 4g, wan, satellite; a list is cycled"),
    ] = None
    epsilon: Annotated[
        str | None, typer.Option(help="ε of one release; switches a gaussian scenario to gamma-norm")
    ] = None
    noise_multiplier: Annotated[str | None, typer.Option(help="z of gaussian noise")] = None
    total_epsilon: Annotated[
        str | None, typer.Option(help="privacy budget of each edge; z is computed from it unless given")
    ] = None
    total_delta: Annotated[str | None, typer.Option(help="δ of the budget")] = None

    def load(self, scenario: str) -> tuple[str, Scenario]:
        """Return (short name, checked scenario)."""
        return load_scenario(scenario, self.resolve(scenario), seed=self.seed, edges=self.edges)

    def resolve(self, scenario: str) -> list[str]:
        """Return all changes but those of seed and edges as KEY=VALUE; --set comes last and so wins."""
        found = []
        if self.iterations is not None:
            found.append(f"iterations={self.iterations}")
        if self.links is not None:
            tables = ", ".join(f'{{name = "{name.strip()}"}}' for name in self.links.split(","))
            found.append(f"links=[{tables}]")
        return [*found, *self._privacy(scenario), *(self.changes or ())]

    def _privacy(self, scenario: str) -> list[str]:
        gaussian, found = _noise(scenario) == "gaussian", []
        if self.epsilon is not None:
            # ε of one release belongs to a law on the norm; the gaussian law has z, and ε of the whole run
            found += ["privacy.noise=gamma-norm"] if gaussian else []
            found.append(f"privacy.epsilon={self.epsilon}")
        if self.noise_multiplier is not None:
            found += ["privacy.noise=gaussian", f"privacy.noise_multiplier={self.noise_multiplier}"]
        if self.total_epsilon is not None:
            found.append(f"privacy.total_epsilon={self.total_epsilon}")
            if gaussian and self.noise_multiplier is None and self.epsilon is None:
                found.append("privacy.noise_multiplier=")  # z follows from the budget
        if self.total_delta is not None:
            found.append(f"privacy.total_delta={self.total_delta}")
        return found


def _noise(scenario: str) -> str:
    privacy = read_scenario(scenario)[1].get("privacy", {})
    return str(privacy.get("noise", "gaussian")) if isinstance(privacy, dict) else ""
