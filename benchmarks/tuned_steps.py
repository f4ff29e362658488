"""Rounds to the same loss with step sizes tuned for each method: designs, memory and full participation.

    python benchmarks/tuned_steps.py [--environments A,B] [--shares 0.05,0.1] [--seeds 10] [--jobs 2]
        [--out FILE]
    python benchmarks/tuned_steps.py --too-large [--seeds 100] [--rounds 150] [--jobs 2]

Federations of the arena with vectors (300 clients), the default sampler. A method's step size is the one with
the fewest rounds to the target on five even seeds: among ``STEPS`` first, then among the best of these and
its multiples by ``FINER``. The table is made on odd seeds. The target is the loss of draws with replacement,
at their own best step, after 80% of the rounds. Curves are means over the seeds, and over the last five
rounds. Brackets are 90% intervals over the seeds (bootstrap; the target is taken anew for each sample). Below
the table: the same at one small step for all methods.

``--too-large`` takes a step that is too large for every method, the same seeds with and without a memory,
and looks at the rounds after the first third in which the loss rises by more than 0.3. It tells how often
more than half of a rise stays if in that round nothing is remembered (the plain estimate of the same cohort),
if the client with the largest part counts with weight one, and if everybody takes part.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
TOO_LARGE = ("fedavg-digits", 0.01, 10.0)
"""Environment, K/M and step."""
RISE = 0.3
WINDOW = 5
SAMPLES = 1000


class Rise(NamedTuple):
    """A round in which the loss rises, and by how much it would have risen otherwise."""

    rise: float
    without_memory: float
    with_weight_one: float
    with_everybody: float
    weight: float
    """Of the client with the largest part in the aggregate."""
    is_new: bool
    """Whether that client was never drawn before."""


@dataclass(frozen=True)
class WatchedSGD(FedSGD):
    """Notes what made the loss rise, from round ``begin`` on."""

    begin: int = field(default=0, kw_only=True)
    seen: set[int] = field(default_factory=set, kw_only=True)
    rises: list[Rise] = field(default_factory=list, kw_only=True)

    def __call__(
        self, state: FloatArray, cohort: Cohort, problem: Problem, round_index: int
    ) -> tuple[FloatArray, FloatArray]:
        """A round of FedSGD, with a note."""
        clients, lam = cohort.clients, problem.client_weights
        updates = problem.updates(state, clients, round_index)
        residuals = updates
        if self.memory is not None:
            remembered = np.array([self.memory.remembered(client) for client in clients.tolist()])
            residuals = updates - self.memory.coefficient * remembered
        following, norms = super().__call__(state, cohort, problem, round_index)
        before = problem.loss(state)
        rise = problem.loss(following) - before
        if rise > RISE and round_index >= self.begin:
            place = int(np.argmax(lam[clients] * cohort.weights * norms))
            client, weight = int(clients[place]), float(cohort.weights[place])
            everybody = lam @ problem.updates(state, np.arange(problem.num_clients), round_index)
            others = (
                state - self.step_size * ((lam[clients] * cohort.weights) @ updates),
                following + self.step_size * lam[client] * (weight - 1.0) * residuals[place],
                state - self.step_size * everybody,
            )
            rises = [problem.loss(other) - before for other in others]
            self.rises.append(Rise(rise, *rises, weight, client not in self.seen))
        self.seen.update(clients.tolist())
        return following, norms


def train(
    environment: str,
    method: str,
    share: float,
    step: float,
    seed: int,
    num_rounds: int,
    tick: Tick,
    rises: list[Rise] | None = None,
) -> FloatArray:
    """The training loss after each round; with ``rises``, also what made it rise."""
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
    algorithm = FedSGD(step, memory)
    if rises is not None:
        algorithm = WatchedSGD(step, memory, begin=num_rounds // 3, rises=rises)
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


def watch(method: str, seed: int, num_rounds: int, tick: Tick) -> tuple[float, list[Rise]]:
    """The loss over the last tenth of the rounds, and the rises."""
    environment, share, step = TOO_LARGE
    rises: list[Rise] = []
    with np.errstate(all="ignore"):
        losses = train(environment, method, share, step, seed, num_rounds, tick, rises)
    return float(losses[-num_rounds // 10 :].mean()), rises


def too_large_steps(seeds: int, rounds: int, jobs: int) -> None:
    """How often training is thrown back with and without a memory, and by what."""
    print(
        "| method | rises a run | final loss: median | mean | largest | above twice the median "
        "| rises that stay without the memory | with weight one | with everybody | weight | never drawn |"
    )
    print("|---" * 11 + "|")
    median = None
    for method in ("fixed_size", "fixed_size + memory"):
        runs = run_tasks([partial(watch, method, seed, rounds) for seed in range(seeds)], jobs)
        final = np.array([run[0] for run in runs])
        median = np.median(final) if median is None else median
        largest = [max(run[1]) for run in runs if run[1]]
        for label, some in (
            (method, [rise for run in runs for rise in run[1]]),
            ("largest of each", largest),
        ):
            of = np.array(some)
            stay = (of[:, 1:4] > of[:, :1] / 2.0).mean(axis=0)
            print(
                f"| {label} | {len(some) / seeds:.1f} | {np.median(final):.2f} | {final.mean():.2f} | "
                f"{final.max():.2f} | {(final > 2.0 * median).mean():.0%} | "
                + " | ".join(f"{share:.0%}" for share in stay)
                + f" | {np.median(of[:, 4]):.0f} | {of[:, 5].mean():.0%} |",
                flush=True,
            )


def curve_ends(losses: FloatArray) -> list[float | None]:
    """The final loss of each seed; None where it is no number."""
    return [float(end) if np.isfinite(end) else None for end in losses[:, -WINDOW:].mean(axis=1)]


if __name__ == "__main__":
    main()
