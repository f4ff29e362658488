"""What the ledger costs a round, beyond the commits themselves.

    python benchmarks/ledger_cost.py [--clients 1000000] [--cohort 100] [--rounds 300] [--directory /tmp]

Times three things, interleaved round by round so that a noisy machine disturbs all of them alike: the sampler
alone; the recorded sampler; and two bare commits of rows as large as those of a round, in a database with the
same settings. What the ledger adds is the second minus the other two. Medians, in milliseconds. At the end a
snapshot is taken, and the run is opened again.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import time
from pathlib import Path

import numpy as np

from sortition import AdaptiveOSMDSampler
from sortition.ledger import open_run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=10**6)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()

    def make() -> AdaptiveOSMDSampler:
        return AdaptiveOSMDSampler(
            num_clients=options.clients, cohort_size=options.cohort, num_rounds=options.rounds
        )

    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        path = Path(directory) / "run.db"
        bare = sqlite3.connect(Path(directory) / "bare.db", isolation_level=None)
        bare.execute("PRAGMA journal_mode = WAL")
        bare.execute("PRAGMA synchronous = FULL")
        bare.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, payload BLOB)")
        alone, run = make(), open_run(path, make, snapshot_every=10**9)
        times: dict[str, list[float]] = {"sampler": [], "recorded": [], "commits": []}
        drawn, observed = os.urandom(4 * 8 * options.cohort + 250), os.urandom(8 * options.cohort + 50)
        drawn_clients: set[int] = set()
        for _ in range(options.rounds):
            for name, sampler in (("sampler", alone), ("recorded", run)):
                start = time.perf_counter()
                cohort = sampler.draw()
                middle = time.perf_counter()
                norms = np.exp(np.sin(cohort.clients))
                drawn_clients.update(cohort.clients.tolist())
                again = time.perf_counter()
                sampler.observe(cohort, norms)
                times[name].append(middle - start + time.perf_counter() - again)
            start = time.perf_counter()
            for payload in (drawn, observed):
                bare.execute("INSERT INTO rows (payload) VALUES (?)", (payload,))
            times["commits"].append(time.perf_counter() - start)
        medians = {name: 1e3 * float(np.median(values[10:])) for name, values in times.items()}
        for name, value in medians.items():
            print(f"{name:<28}{value:8.3f} ms a round")
        beyond = medians["recorded"] - medians["sampler"] - medians["commits"]
        print(f"{'beyond sampler and commits':<28}{beyond:8.3f} ms a round")
        start = time.perf_counter()
        run.close()
        closing = time.perf_counter() - start
        (snapshot,) = path.with_name("run.db.d").glob("snapshot-*")
        size = snapshot.stat().st_size
        print(f"snapshot and close          {1e3 * closing:8.1f} ms, {size / 1e6:.2f} MB")
        seen, experts = len(drawn_clients), len(alone.expert_weights)
        print(f"  {size / seen:.0f} bytes for each of {seen} clients drawn, {experts} experts")
        start = time.perf_counter()
        open_run(path, make).close()
        print(f"opened from the snapshot    {1e3 * (time.perf_counter() - start):8.1f} ms")
        snapshot.unlink()
        start = time.perf_counter()
        open_run(path, make).close()
        took = time.perf_counter() - start
        print(
            f"opened by replaying         {1e3 * took:8.1f} ms, {1e3 * took / options.rounds:.2f} ms a round"
        )


if __name__ == "__main__":
    main()
