"""mapa attack: reconstruct images from released gradients; mapa observe: record them on the broker."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

from common.datasets.catalogue import data_directory
from common.errors import ConfigurationError
from common.mechanism.clipping import CLIPPINGS, Clipping
from common.transport.connection import MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.codec import new_nonce
from experiments.observer import nearest_image, observe_directory, record_payloads
from experiments.reconstruction import (
    LAWS,
    PUBLISHED,
    Reconstruction,
    attack,
    draw_grid,
    draw_sightings,
    grey_shape,
    head_of,
)
from mapa.commands.common_options import with_groups
from mapa.commands.options import Connection
from mapa.output import note
from mapa.scenario_files import load_scenario
from mapa.simulation.world import World

_SPREAD = ("--epsilon", "--iterations")
_SHOWN = 12  # rows of the picture from the wire


class SpreadCommand(TyperCommand):
    """A command whose number lists may be written `--epsilon 0.01 0.1 1` as well."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # click is typer's own affair
        return super().parse_args(ctx, spread(args, _SPREAD))


COMMAND_CLASS = SpreadCommand  # of every command that is registered from here


def spread(args: Sequence[str], options: Sequence[str]) -> list[str]:
    """Repeat an option before each further number that follows it."""
    result: list[str] = []
    current, taken = "", 0
    for word in args:
        if word in options:
            current, taken = word, 0
        elif current and _is_numbers(word):
            if taken:
                result.append(current)
            taken += 1
        else:
            current = ""
        result.append(word)
    return result


def attack_command(
    scenario: Annotated[str, typer.Argument(help="a shipped scenario's name, or a TOML file")],
    epsilon: Annotated[
        list[str] | None,
        typer.Option(help="ε of one release; repeatable or comma-separated; default: 0.01,0.1,1"),
    ] = None,
    iterations: Annotated[
        list[str] | None,
        typer.Option(help="t of the attacked models; repeatable or comma-separated; default: 1,2000"),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, help="b of the attacked releases; 1 as in the paper's pictures")
    ] = 1,
    releases: Annotated[
        int, typer.Option(min=1, help="gradients per cell; the metrics are means over them")
    ] = 10,
    law: Annotated[list[str] | None, typer.Option(help=f"repeatable; default: {', '.join(LAWS)}")] = None,
    clipping: Annotated[
        list[str] | None, typer.Option(help="repeatable; default: per-sample and batch-mean")
    ] = None,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="train once per ε instead of once at the scenario's ε")
    ] = False,
    from_payloads: Annotated[
        Path | None, typer.Option(help="invert the *.gradient files of a recorded run instead")
    ] = None,
    out: Annotated[Path, typer.Option(help="directory for the pictures")] = Path("runs/attack"),
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE for any field")] = None,
    seed: Annotated[
        int | None, typer.Option(help="override the scenario's seed; default: its own, else 0")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="instead of MAPA_DATA_DIR")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Reconstruct images from gradients that the real edge code released: a table and a picture grid."""
    name, resolved = load_scenario(scenario, changes or [], seed=seed)
    if resolved.seed is None:
        name, resolved = load_scenario(scenario, changes or [], seed=0)
    world = World.of(resolved, data_dir or data_directory(os.environ), say=note)
    shape = grey_shape(world.dataset)  # refused before hours of work
    if from_payloads is not None:
        _report_payloads(world, from_payloads, out / f"{name}-wire", as_json)
        return
    clippings = [_clipping(text) for text in clipping or [c.name for c in PUBLISHED]]
    for text in law or []:
        if text not in LAWS:
            raise ConfigurationError(f"law = {text!r}: allowed are {', '.join(LAWS)}")
    cells = attack(
        world,
        epsilons=_numbers("epsilon", epsilon or ["0.01,0.1,1"]),
        iterations=_whole("iterations", iterations or ["1,2000"]),
        batch_size=batch_size,
        releases=releases,
        laws=law or LAWS,
        clippings=clippings,
        retrain=retrain,
    )
    paths: list[Path] = []
    for chosen in clippings:
        own = [cell for cell in cells if cell.clipping == chosen.name]
        paths += draw_grid(own, shape, out / f"{name}-{chosen.name}")
    if as_json:
        report = {
            "scenario": name,
            "cells": [_row(cell) for cell in cells],
            "pictures": [str(p) for p in paths],
        }
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        what = "images" if head_of(world.model).sees_pixels else "inputs of the last layer, and labels"
        title = f"{what} from gradients of {batch_size} sample(s)"
        _print_table(title, [_row(cell) for cell in cells], ".3g", width=100)
        _print_paths(paths)


def _report_payloads(world: World, directory: Path, stem: Path, as_json: bool) -> None:
    model, dataset = world.model, world.dataset
    sightings = observe_directory(model, directory, regularization=world.scenario.model.regularization)
    pixels = head_of(model).sees_pixels
    rows: list[dict[str, Any]] = []
    pairs = []
    for sighting in sightings:
        arrived = sighting.arrived
        row: dict[str, Any] = {
            "edge_id": arrived.edge_id,
            "sequence": arrived.sequence,
            "version": arrived.version,
            "target": sighting.target,
        }
        if pixels:
            image, r = nearest_image(dataset, sighting.picture)
            row |= {"nearest": image, "correlation": r}
            label = f"{arrived.edge_id} {arrived.sequence}"
            pairs.append((label, sighting.picture, dataset.train.values()[image].astype(float)))
        rows.append(row)
    paths = draw_sightings(pairs[:_SHOWN], grey_shape(dataset), stem) if pairs else []
    if as_json:
        print(json.dumps({"payloads": rows, "pictures": [str(p) for p in paths]}, indent=2))
        return
    _print_table(f"{len(rows)} gradients from the wire", rows, ".3f")
    _print_paths(paths)


def _row(cell: Reconstruction) -> dict[str, Any]:
    keys = ("clipping", "law", "epsilon", "t", "psnr", "ssim", "correlation", "label_accuracy")
    return {key: getattr(cell, key) for key in keys}


def _print_table(title: str, rows: Sequence[dict[str, Any]], form: str, width: int = 0) -> None:
    table = Table(title=title, box=box.SIMPLE)
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            *("–" if v is None else format(v, form) if isinstance(v, float) else str(v) for v in row.values())
        )
    console = Console()
    console.width = max(console.width, width)
    console.print(table)


def _print_paths(paths: Sequence[Path]) -> None:
    Console(soft_wrap=True).print("\n".join(f"wrote {path}" for path in paths), highlight=False)


def _clipping(text: str) -> Clipping:
    allowed = [
        name for name in CLIPPINGS.names if not CLIPPINGS.describe(name).made.extra
    ]  # a count shows no image
    if text not in allowed:
        raise ConfigurationError(f"clipping = {text!r}: allowed are {', '.join(allowed)}")
    made: Clipping = CLIPPINGS.make(text, {})
    return made


def _numbers(key: str, texts: Sequence[str]) -> list[float]:
    try:
        numbers = [float(part) for text in texts for part in text.split(",") if part]
    except ValueError:
        raise ConfigurationError(f"{key} = {' '.join(texts)!r}: must be numbers") from None
    if not numbers or not all(0 < number < math.inf for number in numbers):
        raise ConfigurationError(f"{key} = {' '.join(texts)!r}: must be finite and greater than 0")
    return numbers


def _whole(key: str, texts: Sequence[str]) -> list[int]:
    numbers = _numbers(key, texts)
    if not all(number.is_integer() for number in numbers):
        raise ConfigurationError(f"{key} = {' '.join(texts)!r}: must be whole numbers")
    return [int(number) for number in numbers]


def _is_numbers(word: str) -> bool:
    try:
        return bool([float(part) for part in word.split(",")])
    except ValueError:
        return False


@with_groups()
def observe_command(
    connection: Connection,
    out: Annotated[Path, typer.Option(help="folder for the payloads")],
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="gradients to record")] = 100,
) -> None:
    """Record the gradients of a run as any reader of its topics sees them; Ctrl-C ends it early."""
    introduced, run = connection.credentials(), connection.run_id
    options = MqttOptions(
        address=connection.address,
        client_id=f"{run}::observer-{new_nonce()}",
        username=introduced.username,
        password=introduced.password,
        tls=introduced.tls,
    )
    with SelectorLoop() as loop:
        channel = MqttChannel(options, loop)
        recorder = record_payloads(channel, run, out, limit, on_full=loop.stop)
        channel.connect(connection.connect_timeout, note)
        try:
            loop.run()
        except KeyboardInterrupt:
            pass
        finally:
            channel.close()
    print(f"{len(recorder.kept)} gradients in {out}", file=sys.stderr)
