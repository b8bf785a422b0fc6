"""mapa schedule: the stages that MAPA would go through, before anything runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from cloud.stages import planned_stages
from common.errors import ConfigurationError
from common.noise.registry import describe_law, laws_with
from common.problem import Problem, SensitivityRule
from mapa import output
from mapa.commands import options

_OF_A_STAGE = ("sensitivity", "clip", "variance", "p_raw", "p", "learning_rate", "length_raw", "length")


def schedule(
    batch_size: Annotated[int, typer.Option(help="b")] = 12,
    sigma: Annotated[float, typer.Option(help="σ, standard deviation of a sample's gradient")] = 30.0,
    smoothness: Annotated[float, typer.Option(help="L")] = 10.0,
    delta: Annotated[float, typer.Option(help="δ of Theorem 3")] = 1e-3,
    theta: Annotated[float, typer.Option(help="θ, reduction ratio of ΔS")] = 0.5,
    epsilon: Annotated[list[float] | None, typer.Option(help="ε_k; repeat it for several edges")] = None,
    noise_multiplier: Annotated[
        list[float] | None, typer.Option(help="z_k of the gaussian law; repeatable")
    ] = None,
    noise: Annotated[
        str, typer.Option(help="exponential-norm, gamma-norm, gaussian, laplace or package.module:Class")
    ] = "exponential-norm",
    noise_parameter: options.NoiseParameters = None,
    dimension: Annotated[
        int | None, typer.Option(help="N, for all laws whose second moment grows with it")
    ] = None,
    tau_max: Annotated[int, typer.Option(help="τ_max")] = 5,
    loss_gap: Annotated[float, typer.Option(help="f₀ = f(x₁) − f(x*)")] = 1.0,
    iterations: Annotated[int, typer.Option(help="T")] = 25000,
    first_clip: Annotated[float | None, typer.Option(help="C₁ instead of Theorem 3")] = None,
    rule: Annotated[
        str, typer.Option(help="theta (ΔS ← θΔS) or table (the parameter table's rule)")
    ] = "theta",
    as_json: options.AsJson = False,
) -> None:
    """Print ΔS, Δ_b, P, γ and T_s of the stages within T updates."""
    if rule not in (allowed := [r.value for r in SensitivityRule]):
        raise ConfigurationError(f"rule = {rule!r}: allowed are {', '.join(allowed)}")
    problem = Problem(
        batch_size=batch_size,
        smoothness=smoothness,
        sigma=sigma,
        tau_max=tau_max,
        iterations=iterations,
        theta=theta,
        delta=delta,
        loss_gap=loss_gap,
        first_clip=first_clip,
        rule=SensitivityRule(rule),
    )
    given = options.noise_parameters(noise_parameter)
    for key, values in (("epsilon", epsilon), ("noise_multiplier", noise_multiplier)):
        given[key] = given.get(key, []) + list(values or ())
    moment = largest_moment(noise, {key: values for key, values in given.items() if values}, dimension)
    stages = list(planned_stages(moment, problem))
    last_start, last = stages[-1]
    rows = [
        {"stage": stage.index, **{key: getattr(stage, key) for key in _OF_A_STAGE}, "start": start}
        for start, stage in stages
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _print_table(rows)
    remaining = iterations - last_start + 1
    if last.length > remaining:
        output.console(stderr=True, soft_wrap=True).print(
            f"warning: stage {last.index} needs {last.length:,} updates, but only {remaining:,} remain of"
            f" T = {iterations:,}; it ends at T",
            style="yellow",
        )


def largest_moment(noise: str, given: Mapping[str, Sequence[float]], dimension: int | None) -> float:
    """Return v = max_k E‖η‖²/ΔS² of the law in use; the values of each parameter are cycled over edges."""
    law = describe_law(noise)
    for key in given:
        if key not in law.names:
            goes = " or ".join(laws_with(key)) or "no law that comes with mapa"
            takes = " and ".join(law.names) or "no parameter"
            raise ConfigurationError(f"{key}: requires --noise {goes}, not {noise}, which takes {takes}")
    for key in law.names:
        if not given.get(key):
            raise ConfigurationError(f"{key}: required with --noise {noise}")
    if dimension is not None and dimension < 1:
        raise ConfigurationError(f"dimension = {dimension}: must be at least 1")
    edges = max((len(values) for values in given.values()), default=1)
    laws = [law.make({key: values[k % len(values)] for key, values in given.items()}) for k in range(edges)]
    if dimension is None and any(
        one.relative_second_moment(1) != one.relative_second_moment(2) for one in laws
    ):
        raise ConfigurationError(f"dimension: required with --noise {noise}: its second moment grows with N")
    return max(one.relative_second_moment(dimension or 1) for one in laws)


def _print_table(rows: list[dict[str, Any]]) -> None:
    table = Table(title="MAPA stages", box=box.SIMPLE)
    for column in rows[0]:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else f"{v:.6g}" for v in row.values()))
    console = output.console()
    console.width = max(console.width, 120)
    console.print(table)
