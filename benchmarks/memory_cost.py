"""What a memory costs: the time of ``combine``, and the bytes that a round writes to a ledger.

The time of norms and a weighted sum in numpy stands beside it. Medians of interleaved rounds:

    python benchmarks/memory_cost.py                  # 10^6 parameters, 20 clients
    python benchmarks/memory_cost.py --offline        # 400 clients with 100,000 parameters, 10 a round
    python benchmarks/memory_cost.py --ledger         # 914 clients with 100,000 parameters, 20 a round
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from sortition import Cohort, Memory, default_sampler
from sortition.ledger import open_run


def combine_time(parameters: int, size: int, rounds: int) -> None:
    """Print the ratio for each type of update and row."""
    rng = np.random.default_rng(0)
    ones, weights = np.ones(size), np.full(size, 1.0 / size)
    for update in (np.float64, np.float32):
        updates = rng.normal(size=(size, parameters)).astype(update)
        for row in ("float32", "float64", "float16"):
            memory = Memory(num_parameters=parameters, num_clients=size, dtype=row)  # type: ignore[arg-type]
            plain, combined = [], []
            for turn in range(rounds + 3):
                start = time.perf_counter()
                np.linalg.norm(updates, axis=1)
                weights.astype(update) @ updates
                plain.append(time.perf_counter() - start)
                cohort = Cohort(turn, size, np.arange(size), ones, 0.5 * ones, 2.0 * ones)
                start = time.perf_counter()
                memory.combine(cohort, updates, weights)
                combined.append(time.perf_counter() - start)
            one, other = float(np.median(plain[3:])), float(np.median(combined[3:]))
            print(
                f"updates {np.dtype(update)}, rows {row}: {1e3 * other:.0f} ms, plain {1e3 * one:.0f} ms, "
                f"ratio {other / one:.2f}",
                flush=True,
            )


def offline_time(clients: int, parameters: int, size: int, rounds: int) -> None:
    """Print the time of a round with all clients online, and with some of them."""
    rng = np.random.default_rng(0)
    own = rng.normal(size=(clients, parameters)).astype(np.float32)
    everybody, online = np.arange(clients), clients // 10
    memory = Memory(num_parameters=parameters, num_clients=clients)
    memory.combine(Cohort(0, clients, everybody, *np.ones((3, clients))), own, np.full(clients, 1 / clients))
    seconds: dict[float, list[float]] = {share: [] for share in (1.0, 0.9, 0.5, 0.1)}
    for turn in range(1, len(seconds) * (rounds + 3)):
        share = list(seconds)[turn % len(seconds)]
        drawn, ones = rng.choice(online, size, replace=False), np.ones(size)
        available = None if share == 1.0 else everybody[: round(share * clients)]
        cohort = Cohort(turn, size, drawn, ones, 0.1 * ones, 10.0 * ones, available=available)
        start = time.perf_counter()
        memory.combine(cohort, own[drawn], np.full(size, 1 / clients))
        seconds[share].append(time.perf_counter() - start)
    for share, all_of_them in seconds.items():
        print(f"{100 * share:.0f}% online: {1e3 * np.median(all_of_them[3:]):.1f} ms")


def ledger_bytes(clients: int, parameters: int, size: int, rounds: int) -> None:
    """Print the bytes of the files that a round adds, in the second half of the rounds."""
    rng = np.random.default_rng(0)
    own = rng.normal(size=(clients, parameters)).astype(np.float32)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.db"
        memory = Memory(num_parameters=parameters, num_clients=clients)
        written, seconds, disk = [], [], []
        with open_run(path, lambda: default_sampler(clients, size)) as run:
            for _ in range(rounds):
                cohort = run.draw()
                updates = own[cohort.clients] + 0.3 * rng.normal(size=(len(cohort), parameters))
                _, norms = memory.combine(cohort, updates, run.client_weights)
                before = {file.name for file in Path(f"{path}.d").iterdir()}
                start = time.perf_counter()
                run.attach(cohort.round_index, "memory", memory.state_dict())
                seconds.append(time.perf_counter() - start)
                sizes = {file.name: file.stat().st_size for file in Path(f"{path}.d").iterdir()}
                written.append(sum(size for name, size in sizes.items() if name not in before))
                disk.append(sum(sizes.values()))
                run.observe(cohort, norms)
        half = rounds // 2
        whole = memory.clients_remembered * parameters * 4
        print(
            f"{memory.clients_remembered} clients remembered, {whole / 1e6:.0f} MB; a round wrote "
            f"{np.mean(written[half:]) / 1e6:.1f} MB, at most {np.max(written[half:]) / 1e6:.1f}, in "
            f"{1e3 * np.median(seconds[half:]):.0f} ms; the files took at most {max(disk) / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ledger", action="store_true", help="bytes written to a ledger, not time")
    parser.add_argument("--offline", action="store_true", help="time with clients offline")
    parser.add_argument("--rounds", type=int, default=0)
    given = parser.parse_args()
    if given.ledger:
        ledger_bytes(914, 100_000, 20, given.rounds or 240)
    elif given.offline:
        offline_time(400, 100_000, 10, given.rounds or 31)
    else:
        combine_time(10**6, 20, given.rounds or 11)
