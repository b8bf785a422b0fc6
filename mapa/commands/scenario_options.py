"""Options of every command that trains with a scenario."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from common.noise.registry import LawDescription, describe_law, implied_law
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
    devices: Annotated[
        str | None,
        typer.Option(help="device of an edge, see `mapa devices list`: pi4, phone …; a list is cycled"),
    ] = None
    epsilon: Annotated[
        str | None, typer.Option(help="ε of one release; switches a gaussian scenario to gamma-norm")
    ] = None
    noise_multiplier: Annotated[str | None, typer.Option(help="z of gaussian noise")] = None
    noise_parameter: options.NoiseParameters = None
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
        if self.devices is not None:
            tables = ", ".join(f'{{name = "{name.strip()}"}}' for name in self.devices.split(","))
            found.append(f"devices=[{tables}]")
        return [*found, *self._privacy(scenario), *(self.changes or ())]

    def _privacy(self, scenario: str) -> list[str]:
        law, found = _law(scenario), []
        given = {"epsilon": self.epsilon, "noise_multiplier": self.noise_multiplier}
        for key, text in given.items():
            if text is not None:
                # a law that has no such parameter gives way to the one that it asks for
                found += [] if key in law.names else [f"privacy.noise={implied_law([key])}"]
                found.append(f"privacy.{key}={text}")
        named = [options.split_parameter(text) for text in self.noise_parameter or ()]
        found += [f"privacy.{key}={text}" for key, text in named]
        if self.total_epsilon is not None:
            found.append(f"privacy.total_epsilon={self.total_epsilon}")
            calibrated = law.made.calibrated
            if calibrated is not None and not named and all(text is None for text in given.values()):
                found.append(f"privacy.{calibrated}=")  # it follows from the budget
        if self.total_delta is not None:
            found.append(f"privacy.total_delta={self.total_delta}")
        return found


def _law(scenario: str) -> LawDescription:
    privacy = read_scenario(scenario)[1].get("privacy", {})
    name = privacy.get("noise", "gaussian") if isinstance(privacy, dict) else "gaussian"
    return describe_law(str(name), "privacy.noise")
