"""mapa attack: reconstruct images from released gradients; mapa observe: record them on the broker."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from common.errors import ConfigurationError
from common.mechanism.clipping import CLIPPINGS, Clipping
from common.transport.connection import MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.codec import new_nonce
from experiments import reconstruction
from mapa.commands import options
from mapa.commands.help import PanelledCommand
from mapa.output import console, note, print_json, print_wide
from mapa.scenario_files import load_scenario
from mapa.simulation.simulator import World

_SPREAD = ("--epsilon", "--iterations")
_LAWS = ", ".join(reconstruction.LAWS)
_SHOWN = 12  # rows of the picture from the wire
_COLUMNS = ("clipping", "law", "epsilon", "t", "psnr", "ssim", "correlation", "label_accuracy")


class SpreadCommand(PanelledCommand):
    """A command whose number lists may be written `--epsilon 0.01 0.1 1` as well."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # click is typer's own affair
        return super().parse_args(ctx, spread(args, _SPREAD))


COMMAND_CLASS = SpreadCommand  # of every command that is registered from here


def spread(args: Sequence[str], lists: Sequence[str]) -> list[str]:
    """Repeat an option before each further number that follows it."""
    result: list[str] = []
    current, taken = "", 0
    for word in args:
        if word in lists:
            current, taken = word, 0
        elif current and _floats(word):
            if taken:
                result.append(current)
            taken += 1
        else:
            current = ""
        result.append(word)
    return result


def attack_command(
    scenario: options.ScenarioName,
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
    law: Annotated[
        list[str] | None, typer.Option(help=f"repeatable; default: {', '.join(reconstruction.LAWS)}")
    ] = None,
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
    changes: options.Changes = None,
    seed: Annotated[
        int | None, typer.Option(help="override the scenario's seed; default: its own, else 0")
    ] = None,
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Reconstruct images from gradients that the edge code released.

    The result is a table and a grid of pictures.
    """
    name, resolved = load_scenario(scenario, changes or [], seed=seed)
    if resolved.seed is None:
        name, resolved = load_scenario(scenario, changes or [], seed=0)
    world = World.of(resolved, options.data_dir_or_default(data_dir), say=note)
    shape = reconstruction.grey_shape(world.dataset)  # refused before hours of work
    pixels, paths = reconstruction.head_of(world.model).sees_pixels, []
    if from_payloads is not None:
        rows, pairs = _seen(world, from_payloads, pixels=pixels)
        paths = reconstruction.draw_sightings(pairs[:_SHOWN], shape, out / f"{name}-wire") if pairs else []
        title, form = f"{len(rows)} gradients from the wire", ".3f"
        report: dict[str, Any] = {"payloads": rows}
    else:
        clippings = [_clipping(text) for text in clipping or [c.name for c in reconstruction.PUBLISHED]]
        for text in law or []:
            if text not in reconstruction.LAWS:
                raise ConfigurationError(f"law = {text!r}: allowed are {', '.join(reconstruction.LAWS)}")
        cells = reconstruction.attack(
            world,
            epsilons=_numbers("epsilon", epsilon or ["0.01,0.1,1"]),
            iterations=[int(t) for t in _numbers("iterations", iterations or ["1,2000"], whole=True)],
            batch_size=batch_size,
            releases=releases,
            laws=law or reconstruction.LAWS,
            clippings=clippings,
            retrain=retrain,
        )
        for chosen in clippings:
            own = [cell for cell in cells if cell.clipping == chosen.name]
            paths += reconstruction.draw_grid(own, shape, out / f"{name}-{chosen.name}")
        rows = [{key: getattr(cell, key) for key in _COLUMNS} for cell in cells]
        what = "images" if pixels else "inputs of the last layer, and labels"
        title, form = f"{what} from gradients of {batch_size} sample(s)", ".3g"
        report = {"scenario": name, "cells": rows}
    if as_json:
        print_json({**report, "pictures": [str(p) for p in paths]})
        return
    table = Table(title=title, box=box.SIMPLE)
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        texts = (format(value, form) if isinstance(value, float) else str(value) for value in row.values())
        table.add_row(*("–" if text == "None" else text for text in texts))
    print_wide(table)
    console().print("\n".join(f"wrote {path}" for path in paths), highlight=False, soft_wrap=True)


def _seen(
    world: World, directory: Path, *, pixels: bool
) -> tuple[list[dict[str, Any]], list[tuple[str, reconstruction.Picture, reconstruction.Picture]]]:
    """Return what each recorded gradient gave away, and where images can be seen (name, image, nearest image)."""
    rows, pairs = [], []
    regularization = world.scenario.model.regularization
    for sighting in reconstruction.observe_directory(world.model, directory, regularization=regularization):
        arrived = sighting.arrived
        row = {key: getattr(arrived, key) for key in ("edge_id", "sequence", "version")}
        rows.append({**row, "target": sighting.target})
        if pixels:
            image, r = reconstruction.nearest_image(world.dataset, sighting.picture)
            rows[-1] |= {"nearest": image, "correlation": r}
            nearest = world.dataset.train.values()[image].astype(float)
            pairs.append((f"{arrived.edge_id} {arrived.sequence}", sighting.picture, nearest))
    return rows, pairs


def _clipping(text: str) -> Clipping:
    names = CLIPPINGS.names
    allowed = [name for name in names if not CLIPPINGS.describe(name).made.extra]  # a count shows no image
    if text not in allowed:
        raise ConfigurationError(f"clipping = {text!r}: allowed are {', '.join(allowed)}")
    made: Clipping = CLIPPINGS.make(text, {})
    return made


def _floats(text: str) -> list[float] | None:
    """Return comma-separated numbers; None: something else is among them."""
    try:
        return [float(part) for part in text.split(",") if part]
    except ValueError:
        return None


def _numbers(key: str, texts: Sequence[str], *, whole: bool = False) -> list[float]:
    said, parts = f"{key} = {' '.join(texts)!r}", [_floats(text) for text in texts]
    if None in parts:
        raise ConfigurationError(f"{said}: must be numbers")
    numbers = [number for part in parts for number in part or ()]
    if not numbers or not all(0 < number < math.inf for number in numbers):
        raise ConfigurationError(f"{said}: must be finite and greater than 0")
    if whole and not all(number.is_integer() for number in numbers):
        raise ConfigurationError(f"{said}: must be whole numbers")
    return numbers


def observe_command(
    connection: options.Connection,
    out: Annotated[Path, typer.Option(help="folder for the payloads")],
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="gradients to record")] = 100,
) -> None:
    """Record the gradients of a run as any reader of its topics can.

    Ctrl-C ends it early.
    """
    run = connection.run_id
    how = MqttOptions(
        address=connection.address,
        client_id=f"{run}::observer-{new_nonce()}",
        credentials=connection.credentials(),
    )
    with SelectorLoop() as loop:
        channel = MqttChannel(how, loop)
        recorder = reconstruction.record_payloads(
            channel, run, out, limit, on_full=loop.stop, sealed=how.credentials.identity is not None
        )
        channel.connect(connection.connect_timeout, note)
        try:
            loop.run()
        except KeyboardInterrupt:
            pass
        finally:
            channel.close()
    print(f"{len(recorder.kept)} gradients in {out}", file=sys.stderr)
