"""Rounds to the same loss with step sizes tuned for each method: designs, memory and full participation.

    python benchmarks/tuned_steps.py [--environments A,B] [--shares 0.05,0.1] [--seeds 10] [--jobs 2]
        [--out FILE]
    python benchmarks/tuned_steps.py --too-large [--seeds 20] [--jobs 2]

Federations of the arena with vectors (300 clients), the default sampler. A method's step size is the one with
the fewest rounds to the target on five even seeds: among ``STEPS`` first, then among the best of these and
its multiples by ``FINER``. The table is made on odd seeds. The target is the loss of draws with replacement,
at their own best step, after 80% of the rounds. Curves are means over the seeds, and over the last five
rounds. Brackets are 90% intervals over the seeds (bootstrap; the target is taken anew for each sample). Below
the table: the same at one small step for all methods.

``--too-large`` counts, at steps that are too large for every method, the rounds after the first third in
which the loss rises by more than 0.3, and shows the final loss: median, mean and largest over the seeds. Of
these rounds it tells how long the part of the largest client in the aggregate is, and the part that is
remembered, over the length of the aggregate (medians), that client's weight (median), and how often it had
never been drawn before.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from sortition import Cohort, EmpiricalBayesSampler, Memory
from sortition.cli.options import RoundsProgress
from sortition.core.types import FloatArray
from sortition.lab.algorithms import FedSGD
from sortition.lab.arena.environments import seeds_of
from sortition.lab.arena.tournament import TARGET_SHARE, rounds_to
from sortition.lab.arena.vectors import VECTOR_ENVIRONMENTS
from sortition.lab.parallel import Tick, run_tasks
from sortition.lab.training import Problem, training_rounds

STEPS = (0.3, 0.6, 1.2, 2.5, 5.0, 10.0, 20.0, 40.0)
FINER = (1 / 1.5, 1.5)
SMALL_STEP = 0.1
BASE, FULL = "with_replacement", "full participation"
METHODS = (BASE, "fixed_size", "fixed_size + memory", FULL)
TUNING_SEEDS = 5
TOO_LARGE = (
    ("fedavg-digits", 0.01, 10.0),
    ("sgd-digits", 0.01, 3.0),
    ("fedavg-digits", 0.05, 30.0),
    ("sgd-digits", 0.05, 10.0),
    ("fedavg-generated", 0.05, 10.0),
)
"""Environment, K/M and step."""
RISE = 0.3
WINDOW = 5
SAMPLES = 1000


@dataclass(frozen=True)
class WatchedSGD(FedSGD):
    """Notes what each aggregate consists of."""

    seen: set[int] = field(default_factory=set, kw_only=True)
    notes: list[tuple[float, float, float, float]] = field(default_factory=list, kw_only=True)
    """Of each round: the largest client's part, its weight, whether it is new, and the remembered part."""

    def __call__(
        self, state: FloatArray, cohort: Cohort, problem: Problem, round_index: int
    ) -> tuple[FloatArray, FloatArray]:
        """A round of FedSGD, with a note."""
        weights, remembered = problem.client_weights, 0.0
        if self.memory is not None:
            rows = np.array([self.memory.remembered(client) for client in range(problem.num_clients)])
            remembered = self.memory.coefficient * float(np.linalg.norm(weights @ rows))
        following, norms = super().__call__(state, cohort, problem, round_index)
        length = max(float(np.linalg.norm(following - state)) / self.step_size, np.finfo(float).tiny)
        parts = weights[cohort.clients] * cohort.weights * norms
        place = int(np.argmax(parts))
        new = float(int(cohort.clients[place]) not in self.seen)
        self.notes.append((parts[place] / length, cohort.weights[place], new, remembered / length))
        self.seen.update(cohort.clients.tolist())
        return following, norms


def train(
    environment: str,
    method: str,
    share: float,
    step: float,
    seed: int,
    num_rounds: int,
    tick: Tick,
    notes: list[tuple[float, float, float, float]] | None = None,
) -> FloatArray:
    """The training loss after each round; with ``notes``, also what each aggregate consists of."""
    problem = VECTOR_ENVIRONMENTS[environment].make_problem(seed=seed)
    clients = problem.num_clients
    sampler = EmpiricalBayesSampler(
        num_clients=clients,
        cohort_size=clients if method == FULL else round(share * clients),
        client_weights=problem.client_weights,
        design="with_replacement" if method == BASE else "fixed_size",
        seed=seed,
    )
    memory = None
    if method.endswith("memory"):
        memory = Memory(num_parameters=problem.initial_model().size, num_clients=clients)
    losses = np.empty(num_rounds)
    algorithm = FedSGD(step, memory) if notes is None else WatchedSGD(step, memory, notes=notes)
    for done in training_rounds(sampler, problem, algorithm, num_rounds, measure_every=0):
        losses[done.index] = problem.loss(done.state)
        tick()
    return losses


def curve(losses: FloatArray) -> FloatArray:
    """Mean over seeds and the last rounds; what is no number counts as infinite."""
    mean = np.nan_to_num(losses.mean(axis=0), nan=np.inf)
    return np.array([mean[max(0, end - WINDOW) : end].mean() for end in range(1, len(mean) + 1)])


def target_of(losses: FloatArray) -> float:
    """The loss after 80% of the rounds."""
    return float(curve(losses)[round(TARGET_SHARE * losses.shape[1]) - 1])


def needed(losses: FloatArray, target: float) -> float:
    """Rounds to the target; infinite if it is not reached."""
    return rounds_to(curve(losses), target) or np.inf


def interval(losses: FloatArray, base: FloatArray) -> tuple[float, float]:
    """Of the rounds to the base's loss, by resampling the seeds of both together."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(SAMPLES):
        chosen = rng.integers(len(losses), size=len(losses))
        found.append(needed(losses[chosen], target_of(base[chosen])))
    low, high = np.quantile(found, (0.05, 0.95), method="nearest")
    return float(low), float(high)


def shown(rounds: float) -> str:
    """A number of rounds, or that it was not reached."""
    return "never" if rounds == np.inf else f"{rounds:.0f}"


def best_step(tuned: dict[tuple[str, float, float], FloatArray], method: str, share: float) -> float:
    """The step with the fewest rounds to the base's best target; of several, that with the least loss."""
    target = min(target_of(losses) for key, losses in tuned.items() if key[:2] == (BASE, share))
    own = {key[2]: losses for key, losses in tuned.items() if key[:2] == (method, share)}
    return min(own, key=lambda step: (needed(own[step], target), curve(own[step])[-1]))


def main() -> None:
    """Tune, report and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--environments", default="sgd-digits,fedavg-digits,sgd-generated,fedavg-generated")
    parser.add_argument("--shares", default="0.01,0.05,0.1")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--too-large", action="store_true")
    options = parser.parse_args()
    if options.too_large:
        too_large_steps(options.seeds, options.rounds, options.jobs)
        return
    rounds, stored = options.rounds, []
    shares = [float(share) for share in options.shares.split(",")]

    def train_all(
        environment: str, cells: list[tuple[str, float, float]], seeds: list[int]
    ) -> list[FloatArray]:
        """The curves of each (method, share, step), seeds by rounds; full participation is run once."""
        keys = [(method, 0.0 if method == FULL else share, step) for method, share, step in cells]
        distinct = list(dict.fromkeys(keys))
        tasks = [partial(train, environment, *key, seed, rounds) for key in distinct for seed in seeds]
        with RoundsProgress(total=len(tasks) * rounds) as progress, np.errstate(all="ignore"):
            runs = run_tasks(tasks, options.jobs, progress.advance_to)
        by_key = {
            key: np.stack(runs[place * len(seeds) : (place + 1) * len(seeds)])
            for place, key in enumerate(distinct)
        }
        return [by_key[key] for key in keys]

    print("| environment | K/M | " + " | ".join(METHODS) + " |")
    print("|---" * (2 + len(METHODS)) + "|")
    for environment in options.environments.split(","):
        tuned: dict[tuple[str, float, float], FloatArray] = {}
        chosen: dict[tuple[str, float], float] = {}
        pairs = [(method, share) for share in shares for method in METHODS]
        for factors in ((1.0,), FINER):
            grid = [
                (*pair, factor * step)
                for pair in pairs
                for step in ((chosen[pair],) if chosen else STEPS)
                for factor in factors
            ]
            runs = train_all(environment, grid, seeds_of("tune", TUNING_SEEDS))
            tuned.update(zip(grid, runs, strict=True))
            chosen = {pair: best_step(tuned, *pair) for pair in pairs}
        cells = [(method, share, chosen[method, share]) for share in shares for method in METHODS]
        small = [(method, share, SMALL_STEP) for share in shares for method in METHODS]
        runs = train_all(environment, cells + small, seeds_of("report", options.seeds))
        for label, some, losses in (("", cells, runs[: len(cells)]), (" small", small, runs[len(cells) :])):
            of_cell = dict(zip([cell[:2] for cell in some], losses, strict=True))
            for share in shares:
                base = of_cell[BASE, share]
                texts = []
                for method in METHODS:
                    own = of_cell[method, share]
                    step = SMALL_STEP if label else chosen[method, share]
                    count, (low, high) = needed(own, target_of(base)), interval(own, base)
                    texts.append(f"{shown(count)} [{shown(low)}, {shown(high)}] at {step:.2g}")
                    stored.append(
                        {
                            "environment": environment,
                            "share": share,
                            "method": method,
                            "step": step,
                            "target": target_of(base),
                            "rounds": shown(count),
                            "interval": [shown(low), shown(high)],
                            "final_losses": curve_ends(own),
                        }
                    )
                print(f"| {environment}{label} | {share:.0%} | " + " | ".join(texts) + " |", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(stored, indent=1) + "\n")


def watch(
    environment: str, method: str, share: float, step: float, seed: int, num_rounds: int, tick: Tick
) -> tuple[FloatArray, FloatArray]:
    """The losses, and the notes of all rounds."""
    notes: list[tuple[float, float, float, float]] = []
    losses = train(environment, method, share, step, seed, num_rounds, tick, notes)
    return losses, np.array(notes)


def too_large_steps(seeds: int, rounds: int, jobs: int) -> None:
    """How often training is thrown back, by method, and by what."""
    methods = [method for method in METHODS if method != FULL]
    print(
        "| environment | K/M | step | method | rises a run | final loss: median | mean | largest "
        "| in rises: one client's part | its weight | never drawn | remembered part |"
    )
    print("|---" * 12 + "|")
    for environment, share, step in TOO_LARGE:
        for method in methods:
            tasks = [
                partial(watch, environment, method, share, step, seed, rounds)
                for seed in seeds_of("report", seeds)
            ]
            runs = run_tasks(tasks, jobs)
            losses, notes = np.stack([run[0] for run in runs]), np.stack([run[1] for run in runs])
            rising = np.diff(losses[:, rounds // 3 :], axis=1) > RISE
            rises, thrown = rising.sum(axis=1), notes[:, rounds // 3 + 1 :][rising]
            final = losses[:, -rounds // 10 :].mean(axis=1)
            part, weight, _, remembered = np.median(thrown, axis=0)
            print(
                f"| {environment} | {share:.0%} | {step:g} | {method} | {rises.mean():.1f} ± "
                f"{rises.std(ddof=1) / np.sqrt(seeds):.1f} | {np.median(final):.2f} | {final.mean():.2f} | "
                f"{final.max():.2f} | {part:.2f} | {weight:.0f} | {thrown[:, 2].mean():.0%} "
                f"| {remembered:.2f} |",
                flush=True,
            )


def curve_ends(losses: FloatArray) -> list[float | None]:
    """The final loss of each seed; None where it is no number."""
    return [float(end) if np.isfinite(end) else None for end in losses[:, -WINDOW:].mean(axis=1)]


if __name__ == "__main__":
    main()
