"""The laws of import (docs/style.md, part A), executed."""

from __future__ import annotations

import ast
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mapa
from common.algorithms import algorithm_names
from mapa.scenario_files import SHIPPED, load_scenario, shipped_names
from mapa.scenario_patterns import recipe_names
from tests.program_support import run_program

REPOSITORY = Path(__file__).parents[1]
ALLOWED: dict[str, set[str]] = {
    "common": set(),
    "cloud": {"common"},
    "edge": {"common"},
    "mapa": {"common", "cloud", "edge"},
    "experiments": {"common", "cloud", "edge", "mapa"},
}
_PURE = {
    "cloud": ("stages", "algorithm", "admission", "server", "snapshot", "secure_sums"),
    "edge": ("policy", "worker", "session", "masking"),
    "common": ("problem", "quantities", "messages", "errors", "options"),
    "common/noise": ("law", "gaussian", "gamma_norm", "exponential_norm", "laplace", "registry"),
    "common/wire": ("signatures", "sessions", "guards"),
    "common/wire/codings": ("coding", "float16", "int8", "registry"),
    "mapa/dashboard": ("series",),
    "mapa/helper": ("helper",),
    "cloud/algorithms": tuple(name.replace("-", "_") for name in algorithm_names()),
}
PURE = [
    *(f"{folder}/{name}.py" for folder, names in _PURE.items() for name in names),
    *(
        path.relative_to(REPOSITORY).as_posix()
        for folder in ("common/mechanism", "common/secure")
        for path in (REPOSITORY / folder).rglob("*.py")
    ),
]
LONGEST = 700  # lines of a file
FORBIDDEN_IN_PURE = {
    *("paho", "msgpack", "pydantic", "docker", "torch", "asyncio", "socket"),
    *("logging", "threading", "time", "os", "random", "secrets"),
}
ONLY_IN = {
    "paho": {"common/transport/mqtt.py"},
    "msgpack": {"common/wire/codec.py"},
    "docker": {"mapa/container_run.py"},
    "prometheus_client": {"common/telemetry/server.py"},
    "tensorboard": {"mapa/export/tensorboard.py"},
    "mlflow": {"mapa/export/mlflow_store.py"},
    "starlette": {"mapa/dashboard/server.py"},
    "uvicorn": {"mapa/commands/dashboard.py", "mapa/dashboard/listening.py"},
    "torch": {
        "common/models/cnn.py",
        "common/models/torch_gradients.py",
        "common/models/torch_model.py",
        "common/models/torch_module.py",
    },
}
PUBLIC_FACE = "mapa/__init__.py"
MAY_MEASURE = "experiments/bench"  # the benches write down what others do, with the libraries they do it with


def sources(room: str) -> list[Path]:
    found = sorted((REPOSITORY / room).rglob("*.py"))
    assert found, f"no sources in {room}: the law would hold of nothing"
    return found


@functools.cache  # every law reads every file
def imports(path: Path) -> tuple[tuple[str, int], ...]:
    """Return (module, level) of every import, also those inside functions."""
    return tuple(_imports(ast.parse(path.read_text(encoding="utf-8"))))


def _imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level


def packages(path: Path) -> set[str]:
    return {module.partition(".")[0] for module, _ in imports(path)}


def named(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_a_room_imports_only_what_its_law_allows(room: str) -> None:
    for path in sources(room):
        foreign = packages(path) & (ALLOWED.keys() - {room})
        assert foreign <= ALLOWED[room], named(path)


@pytest.mark.parametrize("name", PURE)
def test_pure_files_import_nothing_that_acts(name: str) -> None:
    assert not packages(REPOSITORY / name) & FORBIDDEN_IN_PURE


@pytest.mark.parametrize("package", sorted(ONLY_IN))
def test_a_library_has_one_door(package: str) -> None:
    users = {named(path) for room in ALLOWED for path in sources(room) if package in packages(path)}
    assert {name for name in users if not name.startswith(MAY_MEASURE)} <= ONLY_IN[package]


def test_every_door_that_is_built_is_used() -> None:
    """The law above would hold of nothing if the names in it were wrong."""
    for package in sorted(ONLY_IN.keys() - {"docker"}):
        for name in ONLY_IN[package]:
            assert package in packages(REPOSITORY / name)


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_no_file_is_longer_than_a_reader_holds(room: str) -> None:
    for path in sources(room):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST, named(path)


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_imports_are_absolute_and_annotations_lazy(room: str) -> None:
    for path in sources(room):
        assert all(level == 0 for _, level in imports(path)), named(path)
        code = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if not _docstring(node)]
        if any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(ast.Module(code, []))
        ):
            assert ("__future__", 0) in list(imports(path)), (
                f"{named(path)}: from __future__ import annotations"
            )


def _docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_every_init_is_there_and_empty(room: str) -> None:
    folders = {path.parent for path in sources(room)}
    for folder in folders:
        marker = folder / "__init__.py"
        assert marker.is_file(), named(folder)
        if named(marker) != PUBLIC_FACE:
            assert marker.read_bytes() == b"", named(marker)


@pytest.mark.slow
def test_the_public_face_names_what_exists_and_imports_nothing_before_it_is_asked() -> None:
    tree = ast.parse((REPOSITORY / PUBLIC_FACE).read_text(encoding="utf-8"))
    typed = [node for block in tree.body if isinstance(block, ast.If) for node in block.body]
    told = {
        name.name: node.module for node in typed if isinstance(node, ast.ImportFrom) for name in node.names
    }
    homes = {**mapa._HOMES, **dict.fromkeys(mapa._PARTS, "mapa")}
    assert told == homes, "what type checkers are told of mapa's names is not where they are"
    probe = (
        "import sys, mapa\n"
        "assert not {'numpy', 'torch', 'pydantic', 'common', 'cloud'} & set(sys.modules), 'imported at once'\n"
        "assert len(mapa.__all__) <= 20 and set(mapa.__all__) < set(dir(mapa))\n"
        "for name in {*mapa.__all__} - {'torch_model'}: getattr(mapa, name)\n"
        "import mapa.algorithms, mapa.data, mapa.models, mapa.privacy\n"
        "assert 'torch' not in sys.modules\n"
        "assert isinstance(mapa.models.TorchModel, type) and callable(mapa.torch_model)"
    )
    done = run_program(sys.executable, "-c", probe)
    assert done.returncode == 0, done.stderr


def test_the_application_names_research_only_where_commands_are_looked_up() -> None:
    """`mapa attack` and its like are loaded by name when they are called; nothing else knows experiments."""
    for path in sources("mapa"):
        if named(path) != "mapa/cli.py":
            assert "experiments." not in path.read_text(encoding="utf-8"), named(path)


def test_every_shipped_scenario_parses_and_says_what_it_is() -> None:
    files = sorted(path for path in SHIPPED.rglob("*") if path.is_file())
    assert {"quickstart.toml"} <= {path.name for path in files}
    shipped = [path.stem for path in files if path.suffix == ".toml" and path.parent == SHIPPED]
    assert sorted([*shipped, *recipe_names()]) == shipped_names()
    for path in files:
        if path.suffix == ".toml":
            assert path.read_text(encoding="utf-8").startswith("# "), named(path)
    for name in shipped_names():
        load_scenario(name)


PROBE = """
import sys
from mapa.cli import main
sys.argv = ["mapa", *sys.argv[1:]]
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
print("torch" in sys.modules, file=sys.stderr)
"""


@pytest.mark.slow
def test_a_simulation_of_lr_never_imports_torch(tmp_path: Path) -> None:
    command = ["simulate", "quickstart", "--set", "iterations=3", "--set", "seed=1", "--json"]
    done = run_program(sys.executable, "-c", PROBE, *command, "--runs-dir", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["updates"] == 3
    assert done.stderr.splitlines()[-1] == "False"
