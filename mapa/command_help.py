"""What the help of a command ends with: one example, and its exit codes."""

from __future__ import annotations

_WRONG = "2 wrong configuration or usage"
_DONE = f"0 done, 1 failed, {_WRONG}, 130 interrupted"
_TRAINED = (
    f"0 finished or at its time limit, 1 failed or diverged, {_WRONG}, 3 no edge has budget left, 130 interrupted"
    " (records are kept)"
)

EXIT_CODES = {  # every code of every command, and what it means; each command's help says which are its own
    0: "done, finished, or nothing found wrong",
    1: "failed: an error while it ran, a check that did not hold, a run that diverged, a closed pipe",
    2: "wrong configuration or usage: nothing was started",
    3: "no edge has budget left",
    4: "an edge found no free shard",
    5: "the run has ended, but its halt was not delivered: the command that it prints tells the edges",
    130: "interrupted by Ctrl-C or SIGTERM (of an edge that takes part: by Ctrl-C); records are kept",
}

HELP = {
    "mapa": ("mapa run quickstart", _DONE),
    "init": ("mapa init my-project", _DONE),
    "simulate": (
        "mapa simulate quickstart --seed 1 --set algorithm.theta=0.7",
        f"0 finished or at its time limit, 1 diverged or no gradients pending, {_WRONG}, 3 no edge has budget"
        " left, 130 interrupted (records are kept)",
    ),
    "run": ("mapa run quickstart --edges 5 --links wan", _TRAINED),
    "cloud": (
        "mapa cloud quickstart --broker vm.example.org --run first --edges-at-least 3",
        f"{_TRAINED}, 5 ended, but the edges were not told: the command that it prints does that",
    ),
    "edge": (
        "mapa edge --broker vm.example.org --run first --total-epsilon 2",
        "0 run ended, budget spent or SIGTERM, 1 failed, 2 refused or wrong configuration, 4 no free shard,"
        " 130 interrupted by Ctrl-C",
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
    "pace": ("mapa pace quickstart --seconds 5", _DONE),
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
        f"0 verified, 1 not verified: a check failed or could not be made, {_WRONG} or neither bundle nor run,"
        " 130 interrupted",
    ),
    "dashboard": (
        "mapa dashboard --runs-dir runs --open",
        f"0 stopped by Ctrl-C or SIGTERM, 1 failed, {_WRONG}",
    ),
    "scenarios": ("mapa scenarios --model lr", _DONE),
    "doctor": (
        "mapa doctor --for containers --for dashboard",
        f"0 all that is needed works, 1 something that is needed is missing or broken, {_WRONG}",
    ),
    "completion": ("mapa completion bash", _DONE),
    "runs": ("mapa runs list --state finished --sort started", _DONE),
    "runs list": ("mapa runs list --state finished --sort started", _DONE),
    "runs show": ("mapa runs show latest", _DONE),
    "runs rm": (
        "mapa runs rm quickstart-20260101-120000-0123abcd --yes",
        f"0 removed, 1 a run was refused or not confirmed, {_WRONG}: nothing was removed",
    ),
    "export": (
        "mapa export RUN --to tensorboard --follow",
        f"0 written, 1 failed, {_WRONG} or library missing, 130 interrupted",
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

# The first line of every command's help, so that `mapa --help` need not load the commands; a test compares them.
ABOUT = {
    "init": "Write a project: a scenario, a model of one's own, and how to run it.",
    "simulate": "Simulate a scenario without a network.",
    "run": "Train with a broker, a cloud and edge processes on this machine.",
    "cloud": "Serve one run until its T updates are applied.",
    "edge": "Take part in a run until it ends or the budget is spent.",
    "containers": "Train in containers on this machine, one per edge, with faults on request.",
    "chaos": "Train under kills, pauses, partitions, full disks and disordered messages; check what became of the run.",
    "schedule": "Print ΔS, Δ_b, P, γ and T_s of every stage that begins within T updates.",
    "algorithms": "List the algorithms: what each does, whether its edges clip and noise, and its options.",
    "calibrate": "Find the smallest noise multiplier z that keeps the given number of releases within (ε, δ).",
    "attack": "Reconstruct images from gradients that the real edge code released: a table and a picture grid.",
    "observe": "Record the gradients of a run as any reader of its topics sees them; Ctrl-C ends it early.",
    "audit": "Bound ε from below by attacking the real release code; exit 1 where a claim is refuted.",
    "reproduce": "Run the paper's experiments and judge its claims: report.html, pictures, tables.",
    "compare": "Plot runs, simulated or networked: a metric over updates and, where times are recorded, over seconds.",
    "dashboard": "Serve a live page of the runs in a folder. It reads records and changes nothing.",
    "replay": "Compute a run's final model from its gradient log and tell whether it is the same bit for bit.",
    "bundle": "Put a run that has ended into one file: records, gradient log, ledger statements, model, with hashes.",
    "verify": "Check that a run's records, log, statements and model agree; needs no data set.",
    "scenarios": "Show the shipped scenarios as a table: model, data, K, T, algorithm, budget, purpose.",
    "doctor": "Check this machine: what is missing, what it is needed for, how to mend it. Changes nothing.",
    "completion": "Print a script that completes commands, options, scenarios and run ids in a shell.",
    "pace": "Measure how many gradients a second this machine makes of a scenario: on made-up rows, never on records.",
    "devices": "Devices that edges pose as: presets, and this machine measured.",
    "export": "Write a run's metrics, stages, staleness, ε of each edge, scenario and statement for another program.",
    "runs": "Runs on record: list, show, rm.",
    "ledger": "Privacy spent: `mapa ledger RUN` is short for `mapa ledger show RUN`.",
    "scenario": "Scenario files: one TOML = one run.",
    "data": "Data sets: list, get, where, show.",
}


def epilog(command: str) -> str | None:
    """Return the last lines of a command's help."""
    if command not in HELP:
        return None
    example, codes = HELP[command]
    return f"Example: {example}\n\nExit codes: {codes}."
