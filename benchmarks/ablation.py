"""What each constant of the default sampler is worth: replay on the half of the arena it was tuned on.

    python benchmarks/ablation.py [--seeds 16] [--skip 0] [--jobs 2] [--only NAME,...]

Each variant is a process of its own, which compiles the sampler with other constants. One line a variant: the
geometric mean over the environments of the variance ratio to the optimum, its change by the mean of the
logarithms of all runs, with the standard error over all runs (environments differ, so it is rather too
large), the same mean over the first tenths, the environment that is worst over uniform sampling, the one with
the worst first tenth, and which environments gain and lose most.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from sortition.cli.options import RoundsProgress
from sortition.core import beliefs
from sortition.core.types import FloatArray

OFF = 1e9
Value = float | tuple[float, ...]
VARIANTS: dict[str, tuple[Value, ...]] = {
    "PRIOR_UNIFORM": (0.01, 0.3),
    "LEAST_SHARE": (0.05, 0.2),
    "DISCOVERY": (OFF, 3.0),
    "HOLD": (0.1, 1.0),
    "LOSS_MEMORY": (0.5, 0.98),
    "TRUST": ((0.1, 1e9, 4.0), (0.1, 1.0, 4.0), (0.3, 3.0, 4.0), (0.1, 3.0, 2.0)),
    "SQUARES": ((0.0, 2.0), (0.015, 1.0), (0.05, 2.0)),
    "SURPRISE": (OFF, 0.7),
    "FORGETTING": (0.25, 0.75),
    "FIRST_NOISE": ((0.1, 2.0), (2.0, 2.0)),
    "LARGEST_DEVIATION": (20.0, 3.0),
    "CLIPPED": (1.0, 4.0),
    "CHANCE": (1e-9, 1.0, 4.0, OFF),
    "ANCHOR": (0.0, 0.1),
    "GROWTH": (OFF, 1.0),
    "REPLIES": ((2.0, 5.0), (2.0, OFF)),
    "LEAST_CHANCE": (1.0, 0.01),
    "LOWEST": (-2.0, -60.0),
}
"""TRUST with 1e9: what was learnt is never doubted. SQUARES with 0: mean squares do not count. CHANCE near 0:
the level follows at once; off: never. GROWTH off: sizes teach nothing. LEAST_CHANCE of 1: silence teaches
nothing."""


def run_variant(changes: dict[str, Any], seeds: list[int], traces: Path) -> None:
    """In a process of its own: print the mean and the early ratio of every environment and seed as JSON.

    Traces are the same for all variants; the first one leaves them in ``traces``.
    """
    for name, value in changes.items():
        setattr(beliefs, name, tuple(value) if isinstance(value, list) else value)
    # only now: kernels are compiled with the constants that they find
    from sortition.lab.arena.environments import ALL
    from sortition.lab.arena.tournament import Variance, replay
    from sortition.lab.contestants import CONTESTANTS

    found = {}
    for environment in (one for one in ALL if one.half == "tune"):
        rows = []
        for seed in seeds:
            kept = traces / f"{environment.name}-{seed}.pickle"
            if not kept.exists():
                kept.write_bytes(pickle.dumps(environment.trace(seed)))
            trace, row = pickle.loads(kept.read_bytes()), []
            for name in ("empirical-bayes", "uniform"):
                run = Variance.of_run(replay(CONTESTANTS[name](trace.trial(seed)), trace))
                row += [run.mean, run.early]
            rows.append(row)
        found[environment.name] = rows
    print(json.dumps(found))


def measured(changes: dict[str, Value], arguments: argparse.Namespace, traces: str) -> dict[str, FloatArray]:
    """The runs of a variant: for each environment, seeds by mean, early, and the same of uniform sampling."""
    command = [sys.executable, __file__, "--variant", json.dumps(changes), "--traces", traces]
    command += ["--seeds", str(arguments.seeds), "--skip", str(arguments.skip)]
    with tempfile.TemporaryDirectory() as cache:
        private = {"NUMBA_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=os.environ | private, stdout=subprocess.PIPE, check=True)
    return {name: np.array(rows) for name, rows in json.loads(done.stdout).items()}


def line(label: str, runs: dict[str, FloatArray], base: dict[str, FloatArray]) -> str:
    """A row of the table."""
    names = list(runs)
    mean, early, uniform, early_uniform = np.array([runs[name].mean(axis=0) for name in names]).T
    logs = np.concatenate([np.log(runs[name][:, 0] / base[name][:, 0]) for name in names])
    change = mean / np.array([base[name][:, 0].mean() for name in names])
    worst, first = int(np.argmax(mean / uniform)), int(np.argmax(early / early_uniform))
    error = logs.std(ddof=1) / np.sqrt(len(logs))
    return (
        f"| {label} | {np.exp(np.log(mean).mean()):.3f} | {logs.mean():+.1%} ± {error:.1%} "
        f"| {np.exp(np.log(early).mean()):.3f} | {names[worst]} {mean[worst] / uniform[worst]:.2f} "
        f"| {names[first]} {early[first] / early_uniform[first]:.2f} "
        f"| {names[change.argmin()]} {change.min() - 1:+.0%} "
        f"| {names[change.argmax()]} {change.max() - 1:+.0%} |"
    )


def main() -> None:
    """Run the variants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--skip", type=int, default=0, help="leave out the first seeds")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default=",".join(VARIANTS))
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--traces", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    seeds = [2 * index for index in range(arguments.skip, arguments.skip + arguments.seeds)]
    if arguments.variant:
        run_variant(json.loads(arguments.variant), seeds, arguments.traces)
        return
    variants: dict[str, dict[str, Value]] = {"as it is": {}}
    for name in arguments.only.split(","):
        for value in VARIANTS[name]:
            variants[f"{name} = {'off' if value == OFF else value}"] = {name: value}
    print("| constant | mean | change | early mean | worst over uniform | worst first tenth | best | worst |")
    print("|---" * 8 + "|")
    with (
        tempfile.TemporaryDirectory() as traces,
        ThreadPoolExecutor(arguments.jobs) as pool,
        RoundsProgress(total=len(variants), what="variants") as progress,
    ):
        label, *others = variants
        base = measured({}, arguments, traces)
        print(line(label, base, base), flush=True)
        results = pool.map(lambda label: measured(variants[label], arguments, traces), others)
        for count, (label, runs) in enumerate(zip(others, results, strict=True), start=2):
            print(line(label, runs, base), flush=True)
            progress.advance_to(count)


if __name__ == "__main__":
    main()
