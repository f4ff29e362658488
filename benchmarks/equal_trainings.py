"""The recommended setting with as many clients in a round as the reference really trains.

    python benchmarks/equal_trainings.py RESULTS [--federations chitchat,shakespeare]

RESULTS is a directory that ``sortition arena --real`` has filled. There both have the cohort size K. The
reference, draws by data size with replacement, draws large clients several times in a round, so it trains
fewer than K different clients. A draw of fixed size trains K. Here the recommended setting has the cohort
size that the reference trains on average: tuned for the same target by the same search, on the same seeds.
Another row is the recommended setting at K with the steps of the reference, which are not tuned for it.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sortition.lab.arena.real import BASE, RECOMMENDED, Task, cells_of, effort_of, finished, run_task
from sortition.lab.arena.real_scores import Curves, log_ratio, ratio_interval
from sortition.lab.federations.data import federation
from sortition.lab.reports.real_page import ratio_text


def curves_of(result: dict[str, Any]) -> Curves:
    """Losses and trainings of a finished task."""
    runs = result["runs"]
    return Curves(np.array([run["losses"] for run in runs]), np.array([run["trainings"] for run in runs]))


def print_row(name: str, about: str, result: dict[str, Any], base: Curves) -> None:
    """A line of the table."""
    own = curves_of(result)
    log = log_ratio(own, base, base)
    ratio = None if log is None else math.exp(log)
    client, server = result["steps"]
    last = own.losses[:, -max(1, own.losses.shape[1] // 10) :].mean()
    interval = ratio_text(ratio, ratio_interval(own, base, base))
    cells = (name, about, f"{own.trainings.mean():.1f}", f"{client:g}, {server:g}", interval, f"{last:.4f}")
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Run, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--federations", default="chitchat,shakespeare")
    given = parser.parse_args()
    print("| federation | setting | trainings a round | steps | trainings, over size | final loss |")
    print("|---|---|---|---|---|---|")
    for name in given.federations.split(","):
        cell = cells_of(name)[0]
        task = Task(cell, RECOMMENDED, effort_of(cell, RECOMMENDED))
        reference = finished(Task(cell, BASE, effort_of(cell, BASE)), given.results)
        usual = finished(task, given.results)
        if reference is None or usual is None:
            parser.error(f"{given.results} has no results of {name}: run sortition arena --real first")
        base, target = curves_of(reference), reference["tuned_target"]
        print_row(name, "by size, K draws with replacement", reference, base)
        print_row(name, "recommended, K clients", usual, base)
        share = float(base.trainings.mean()) / federation(name).num_clients
        fewer = run_task(replace(task, cell=replace(cell, share=share)), target, None)
        print_row(name, "recommended, as many clients as by size", fewer, base)
        client, server = reference["steps"]
        print_row(
            name, "recommended, K clients, steps of by size", run_task(task, target, (client, server)), base
        )


if __name__ == "__main__":
    main()
