"""What was decided where the paper leaves it open, in words for the report."""

from __future__ import annotations

from experiments.reproduce.judges.ours import MODELS, bound_of
from experiments.reproduce.results import WINDOW, Results
from experiments.reproduce.verdicts import ERRORS, NEAR, ONE_SEED, TIE


def run_as(results: Results, experiment: str) -> str:
    """Return how the runs of an experiment were made, e.g. `containers`."""
    kinds = {e.point.run_as for e in results.entries if e.point.experiment == experiment}
    return " and ".join(sorted(kinds)) or "not run"


def conventions(results: Results) -> list[str]:
    """Return what was decided where the paper leaves it open."""
    fair = ", ".join(f"{m.upper()} {bound_of(f'accuracy-{m}-mnist-audp-fair'):g}" for m in MODELS)
    sensitivity = run_as(results, "sensitivity")
    drawn = (
        ", with delays drawn per edge in place of the testbed's links" if sensitivity == "simulation" else ""
    )
    return [
        f"Accuracies nearer than {100 * TIE:g} points count as equal; “nearly the same” means within {100 * NEAR:g} "
        f"points. A case is undecided (?) where the difference is within {ERRORS:g} standard errors over seeds of "
        f"what decides, or, with a single seed, within {100 * ONE_SEED:g} point.",
        "Loss and accuracy are those of the last model on the test set (`heldout`: on training records kept apart); "
        "a band is one standard deviation over seeds, a bar spans the smallest to the largest seed. Where a "
        "seed ended early (diverged), the others are drawn as thin single lines.",
        f"Convergence: the mean test loss of {WINDOW} successive evaluations is at most the panel's threshold. "
        "The tables give the count for the caption's threshold, too. A count is the last update of that window: "
        f"at least {WINDOW} × `evaluation.every`, where it is shown as ≤, and coarse by one evaluation. At every K "
        "all edges draw from one shared data set (`data.partition = shared`).",
        "Gradient norms: the paper gives no T; this one is ours.",
        "The attack: x_t and C_t come from a MAPA training at that ε (without noise: at the scenario's ε).",
        "AUDP's bound: “bound G” is as large as the largest gradient's norm. MAPA starts from it, too, except on the "
        "testbed and in `sensitivity`, where it starts from Theorem 3's first bound (as in one line of `constants`), "
        "and in `norms`, `bounds`, `heldout` and `sound`, which set their own. “Fair "
        f"bound” is one constant for each model ({fair}), chosen on held-out training records with other seeds "
        "(experiment `heldout`), never on a test set: what tuning can do for AUDP, which a user with private data "
        "could not do for free. Neither is in the paper, which says “determined by actual model”.",
        "Noise, clipping and the CNN's scope are as printed (exponential-norm, batch-mean, first-conv; not DP), "
        "except in `sound`, which uses this project's defaults.",
        "This project's constants (`common/problem.py`, `docs/paper.md`): σ at x₁, R and f(x₁) of LR and SVM are "
        "as measured on the public data, but L is a quarter of the measured one for LR and 7.5 for the SVM, far "
        "below its nominal 78 (MNIST) and 55 (USPS); the CNN's L = σ = R = 10 are nominal, not measured. "
        "MAPA on the testbed and in `sensitivity` has the paper's σ = 30, L = 10, δ = 1e-3.",
        "Testbed: the schedules take τ_max = K. A network does not guarantee that: the table gives the staleness "
        "that was measured and the share of gradients above τ_max.",
        f"Sensitivity: {sensitivity}{drawn}.",
        "The synchronous version averages K gradients a round, waits for the slowest edge, and uses the algorithm's "
        "own schedule with τ_max = 0, σ/√K and v/K.",
    ]
