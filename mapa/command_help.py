"""What the help of a command ends with: one example, and its exit codes."""

from __future__ import annotations

_WRONG = "2 wrong configuration or usage"
_DONE = f"0 done, 1 failed, {_WRONG}, 130 interrupted"
_TRAINED = f"0 finished, 1 failed or diverged, {_WRONG}, 3 no edge has budget left, 130 interrupted (records are kept)"

HELP = {
    "mapa": ("mapa run quickstart", _DONE),
    "init": ("mapa init my-project", _DONE),
    "simulate": (
        "mapa simulate quickstart --seed 1 --set algorithm.theta=0.7",
        f"0 finished, 1 diverged or no gradients pending, {_WRONG}, 130 interrupted (records are kept)",
    ),
    "run": ("mapa run quickstart --edges 5 --links wan", _TRAINED),
    "cloud": ("mapa cloud quickstart --broker vm.example.org --run first --edges-at-least 3", _TRAINED),
    "edge": (
        "mapa edge --broker vm.example.org --run first --total-epsilon 2",
        "0 run ended or budget spent, 1 failed, 2 refused or wrong configuration, 4 no free shard",
    ),
    "containers": ("mapa containers quickstart --edges 5 --fault 'kill edge-3 at t=500 for 2s'", _TRAINED),
    "chaos": (
        "mapa chaos quickstart --seed 1 --minutes 10",
        f"0 every run came through, 1 one did not (its directory is kept), {_WRONG}, 130 interrupted",
    ),
    "schedule": (
        "mapa schedule --batch-size 12 --sigma 30 --smoothness 10 --delta 1e-3 --theta 0.5 --epsilon 0.1"
        " --tau-max 5 --loss-gap 2.3 --iterations 25000",
        _DONE,
    ),
    "algorithms": ("mapa algorithms mapa", _DONE),
    "ledger": ("mapa ledger runs/RUN", _DONE),
    "ledger show": ("mapa ledger show runs/RUN", _DONE),
    "ledger charge": (
        "mapa ledger charge --state state --run first --edge edge-0123456789ab --through 58",
        f"0 charged, 1 failed, {_WRONG}: nothing was charged",
    ),
    "calibrate": ("mapa calibrate --total-epsilon 2 --releases 200 --batch-size 32 --shard 1000", _DONE),
    "attack": ("mapa attack quickstart --epsilon 0.1 --epsilon 1", _DONE),
    "observe": (
        "mapa observe --broker vm.example.org --run first --out payloads --limit 10",
        f"0 done or interrupted, 1 failed, {_WRONG}",
    ),
    "audit": (
        "mapa audit quickstart --rounds 20000",
        f"0 no claim refuted, 1 a claim refuted, or failed, {_WRONG}, 130 interrupted",
    ),
    "reproduce": (
        "mapa reproduce --quick",
        f"0 all runs done, 1 a run failed, {_WRONG}, 130 interrupted (finished runs are kept)",
    ),
    "replay": (
        "mapa replay RUN --algorithm audp",
        f"0 the same model bit for bit, 1 another one, {_WRONG} or no log, 130 interrupted",
    ),
    "bundle": ("mapa bundle RUN --ledger state --out run.mapa.zip", _DONE),
    "verify": (
        "mapa verify run.mapa.zip",
        f"0 no check failed, 1 a check failed, {_WRONG} or neither bundle nor run, 130 interrupted",
    ),
    "dashboard": (
        "mapa dashboard --runs-dir runs --open",
        f"0 stopped by Ctrl-C or SIGTERM, 1 failed, {_WRONG}",
    ),
    "compare": ("mapa compare RUN ANOTHER-RUN --out comparison", _DONE),
    "scenario": ("mapa scenario show quickstart --set edges=20", _DONE),
    "scenario list": ("mapa scenario list --figures", _DONE),
    "scenario schema": ("mapa scenario schema", _DONE),
    "scenario show": ("mapa scenario show quickstart --set edges=20", _DONE),
    "devices": ("mapa devices measure --name attic --against 0.4", _DONE),
    "devices list": ("mapa devices list --json", _DONE),
    "devices measure": ("mapa devices measure --name attic --against 0.4", _DONE),
    "data": ("mapa data get mnist usps", _DONE),
    "data list": ("mapa data list --json", _DONE),
    "data where": ("mapa data where", _DONE),
    "data show": ("mapa data show quickstart --set data.partition=dirichlet", _DONE),
    "data get": ("mapa data get --scenario cnn-mnist", _DONE),
}


def epilog(command: str) -> str | None:
    """Return the last lines of a command's help."""
    if command not in HELP:
        return None
    example, codes = HELP[command]
    return f"Example: {example}\n\nExit codes: {codes}."
