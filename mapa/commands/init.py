"""mapa init: a project of one's own that runs at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from common.errors import ConfigurationError

TEMPLATES = Path(__file__).parents[1] / "templates"
_SUFFIX = ".txt"  # a template is no module of ours


def init_command(
    folder: Annotated[Path, typer.Argument(help="folder for the project; made where it is missing")] = Path(),
    torch: Annotated[bool, typer.Option("--torch", help="a model in torch instead of numpy")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="write into a folder that is not empty; replaces these files")
    ] = False,
) -> None:
    """Write a project: a scenario, a model of your own, how to run it."""
    written = write_project(folder, "torch" if torch else "numpy", force=force)
    print(f"wrote {', '.join(path.name for path in written)} in {folder.resolve()}")
    print(f"next: mapa simulate {folder / 'scenario.toml'}")


def write_project(folder: Path, template: str, *, force: bool = False) -> list[Path]:
    """Write the files of a template; ConfigurationError where the folder holds something, unless `force`."""
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"folder = {str(folder)!r}: is a file")
    held = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if held and not force:
        raise ConfigurationError(
            f"folder = {str(folder)!r}: not empty ({', '.join(held[:3])}{', …' if held[3:] else ''});"
            " choose another, or add --force"
        )
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sorted((TEMPLATES / template).glob(f"*{_SUFFIX}")):
            target = folder / source.name.removesuffix(_SUFFIX)
            target.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
            written.append(target)
    except OSError as error:
        raise ConfigurationError(f"folder = {str(folder)!r}: cannot be written ({error})") from error
    return written
