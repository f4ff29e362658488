"""What hostile states and files are taken for: the long campaigns behind docs/research/hostile-clients.md.

    python benchmarks/hostile.py states|files [--rounds 12] [--seed 0] [--mutations 40]

``tests/hostile`` runs small ones. A *state* is one of a sampler that has learnt for a while, with one entry
changed. It must be refused by a StateError that changes nothing, or be a distribution, and stay one while the
run goes on. A *file* is a run with one value of one row or of its snapshot changed, or one column of one row,
under right checksums, or a file of it that is shorter or longer than it was. Whoever shows, diagnoses,
exports, verifies or continues it must get a SortitionError, or nothing unusual.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    DoublingOSMDSampler,
    EmpiricalBayesSampler,
    FixedSampler,
    Guard,
    KVibSampler,
    MABSSampler,
    NormPrivacy,
    OptimalSampler,
    OSMDSampler,
    PortfolioSampler,
    ProportionalSampler,
    SortitionError,
    StateError,
    UniformSampler,
    VRBSampler,
)
from sortition.lab.diagnosis.diagnose import diagnose
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.encoding import pack, unpack
from sortition.ledger.files import SNAPSHOT, RunFiles, side_directory
from sortition.ledger.store import checksum
from sortition.ledger.summary import export_csv, figures, summarise

M, K = 12, 3
COMMON: dict[str, Any] = {"num_clients": M, "cohort_size": K}
WEIGHTS = np.arange(1.0, M + 1.0) / sum(range(1, M + 1))
MAKERS: dict[str, Callable[[], Any]] = {
    "uniform": lambda: UniformSampler(**COMMON),
    "proportional": lambda: ProportionalSampler(**COMMON, client_weights=WEIGHTS),
    "fixed": lambda: FixedSampler(**COMMON, probabilities=WEIGHTS),
    "osmd": lambda: OSMDSampler(**COMMON, learning_rate=0.1, guard=Guard()),
    "adaptive-osmd": lambda: AdaptiveOSMDSampler(**COMMON, num_rounds=20, rate_scale=30.0),
    "doubling-osmd": lambda: DoublingOSMDSampler(**COMMON, client_weights=WEIGHTS),
    "mabs": lambda: MABSSampler(**COMMON, num_rounds=20),
    "vrb": lambda: VRBSampler(**COMMON, client_weights=WEIGHTS),
    "avare": lambda: AvareSampler(**COMMON, guard=Guard()),
    "k-vib": lambda: KVibSampler(**COMMON, num_rounds=20),
    "optimal": lambda: OptimalSampler(**COMMON),
    "empirical-bayes": lambda: EmpiricalBayesSampler(**COMMON),
    "private": lambda: EmpiricalBayesSampler(**COMMON, privacy=NormPrivacy(1.0, 0.5), guard=None),
    "portfolio": lambda: PortfolioSampler(experts=[VRBSampler(**COMMON), AvareSampler(**COMMON)]),
}
NUMBERS: tuple[Any, ...] = (
    np.nan, np.inf, -np.inf, 0, -1, 0.5, 1e308, -1e308, 5e-324, 1e-300, 700.0, -700.0, 1e6,
    2**53, 2**62, 2**63, 2**64, 10**400, True, None, "x", "", [], np.zeros(0), np.zeros((2, 2)),
    np.array("x"),
)  # fmt: skip
ELEMENTS = (
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -1.0,
    0.5,
    1e308,
    -1e308,
    5e-324,
    1e-300,
    700.0,
    -700.0,
    1e6,
    2.0**62,
)


COLUMNS: dict[str, tuple[Any, ...]] = {
    "kind": (
        "begun", "drawn", "observed", "joined", "left", "calibrated", "loaded", "noted", "", "\x1b[2J",
        "x" * 10**6,
    ),
    "round_index": (-(2**63), -5, -1, 0, 1, 2, 99, 2**53, 2**62, 2**63 - 1),
    "time": (0.0, -1.0, 5e-324, 1e11, 1e12, 1e300, -1e300, np.inf, -np.inf),
}  # fmt: skip
"""Columns of a row beside its payload, and what they may be forged to."""


def lengths(size: int) -> list[int]:
    """Lengths of a file that had ``size`` bytes; the last is a hole of a terabyte."""
    return sorted(
        {0, 1, 99, 100, size // 2, max(size - 1, 0), size + 1, size + 4096, 2 * size, 2**40} - {size}
    )


def play(sampler: Any, rounds: int, rng: np.random.Generator) -> None:
    """Rounds with norms of several scales that jump and jump back, silence, a client that joins and one that
    leaves."""
    for index in range(rounds):
        if isinstance(sampler, OptimalSampler):
            sampler.reveal(rng.lognormal(0.0, 2.0, sampler.num_ids))
        cohort = sampler.draw()
        norms = rng.lognormal(0.0, 2.0, len(cohort)) * (1e6 if index % 2 else 1.0)
        norms[rng.random(len(cohort)) < 0.1] = np.nan
        sampler.observe(cohort, norms)
        if index == rounds // 2:
            sampler.add_clients(2)
            sampler.remove_clients([1])


def mutations(
    state: dict[str, Any], rng: np.random.Generator, elements: int
) -> Iterator[tuple[str, str, Any]]:
    """Names of entries, what is done to them, and their new values; of an array one element at a time."""
    for name, value in state.items():
        for number in NUMBERS:
            yield name, f"{number!r:.20}", number
        if not isinstance(value, np.ndarray) or not value.ndim:
            continue
        yield name, "shorter", value[:-1]
        yield name, "twice", np.concatenate((value, value))
        yield name, "other type", value.astype(bool if value.dtype == np.float64 else np.float64)
        if not value.size:
            yield name, "one more", np.concatenate((value, np.ones((1, *value.shape[1:]), value.dtype)))
            continue
        yield name, "reversed", value[::-1].copy()
        yield name, "all zero", np.zeros_like(value)
        yield name, "scaled", value * 10
        yield name, "negated", -value
        hidden = np.where(np.arange(value.size).reshape(value.shape) == 0, value.dtype.type(-7), value)
        yield name, "masked", np.ma.array(hidden, mask=hidden != value)
        for _ in range(elements):
            changed, element = value.copy(), rng.choice(ELEMENTS)
            place = tuple(int(rng.integers(length)) for length in value.shape)
            with np.errstate(invalid="ignore"):
                changed[place] = np.float64(element).astype(value.dtype)
            yield name, f"{element:g} at {place}", changed


def fault(sampler: Any, rng: np.random.Generator, rounds: int) -> str:
    """What is wrong with a sampler as it goes on, with silence, clients that join and one that leaves."""
    for index in range(rounds):
        p = sampler.probabilities()
        if not (np.all(np.isfinite(p)) and p.min() >= 0.0 and abs(p.sum() - 1.0) < 1e-6):
            return f"probabilities from {p.min():.3g} to {p.max():.3g} that sum to {p.sum():.6g}"
        if isinstance(sampler, OptimalSampler):
            sampler.reveal(np.where(sampler._here(), rng.lognormal(size=sampler.num_ids), 0.0))
        cohort = sampler.draw()
        if not (np.all(np.isfinite(cohort.weights)) and np.all(cohort.weights >= 0.0)):
            return f"weights {cohort.weights}"
        norms = rng.lognormal(0.0, 1.0, len(cohort))
        sampler.observe(cohort, np.where(rng.random(len(cohort)) < 0.2, np.nan, norms))
        if index == 1:
            sampler.add_clients([0.05, 1e-6])
        if index == 3:
            sampler.remove_clients(sampler._everybody()[:1])
    return ""


def judge(name: str, rounds: int, seed: int, elements: int) -> Iterator[tuple[str, str, str]]:
    """For each mutation: the entry, what was done, and "refused", "fine" or what went wrong."""
    rng = np.random.default_rng(seed)
    untouched = pack(MAKERS[name]().state_dict())
    fault(MAKERS[name](), rng, 1)  # compile before the clock runs
    for state in states(name, rounds, rng):
        yield from judge_state(name, state, untouched, rng, elements)


def states(name: str, rounds: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Those of a new sampler, of one to which nobody has replied, and of one that has learnt for a while."""
    sampler = MAKERS[name]()
    yield sampler.state_dict()
    if isinstance(sampler, OptimalSampler):
        sampler.reveal(np.ones(sampler.num_ids))
    cohort = sampler.draw()
    sampler.observe(cohort, np.full(len(cohort), np.nan))
    yield sampler.state_dict()
    play(sampler, rounds, rng)
    yield sampler.state_dict()


def judge_state(
    name: str, state: dict[str, Any], untouched: bytes, rng: np.random.Generator, elements: int
) -> Iterator[tuple[str, str, str]]:
    """The same of one state."""
    for entry, change, value in mutations(state, rng, elements):
        faulthandler.dump_traceback_later(20.0, exit=True)  # a hang within a kernel can't be interrupted
        target = MAKERS[name]()
        before = pack(target.state_dict()) if "private" in name else untouched
        try:
            target.load_state_dict({**state, entry: value})
        except StateError:
            same = pack(target.state_dict()) == before
            verdict = "refused" if same else "refused, but not without a trace"
        except Exception as error:
            verdict = f"raw {error!r:.200}"
        else:
            try:
                verdict = fault(target, np.random.default_rng(0), 6) or "fine"
            except Exception as error:
                verdict = f"later {error!r:.200}"
        yield entry, change, verdict
    faulthandler.cancel_dump_traceback_later()


def recorded(path: Path, rounds: int) -> None:
    """A run of Avare with a guard, with all kinds of rows: an open cohort, one that joined, a log, names."""
    with open_run(path, MAKERS["avare"]) as run:
        for _ in range(rounds):
            cohort = run.draw()
            run.observe(cohort, np.linspace(0.5, 2.0, len(cohort)))
        run.add_clients(1)
        run.remove_clients([0])
        run.log(loss=0.5)
        run.name_clients([1, 2], ["one", "two"])
        run.attach(rounds - 1, "model", {"weights": np.ones(3)})
        run.draw()


Change: TypeAlias = tuple[str, str, Callable[[], object]]
"""What is changed, to what, and a call that does it to the files of a run."""


def forge(path: Path, rows: list[tuple[Any, ...]], number: int, column: int, value: Any) -> None:
    """Write ``value`` into a column of a row, right checksums into all, and drop what would tell the lie."""
    previous = b""
    with closing(sqlite3.connect(path)) as connection, connection:
        for row in rows:
            own = [*row[:5]]
            if row[0] == number:
                own[column] = value
            previous = checksum(previous, *own)
            connection.execute("REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?)", (*own, previous))
    for file in side_directory(path).iterdir():
        if file.name.startswith(("lock", SNAPSHOT)):
            file.unlink()


def changes_of_rows(
    path: Path, rows: list[tuple[Any, ...]], rng: np.random.Generator, elements: int
) -> Iterator[Change]:
    """One value or one column of a row at a time."""
    for row in rows[:3] + rows[-6:]:
        number, values = row[0], unpack(row[4])
        where = f"row {number} ({row[1]})"
        for entry, change, value in mutations(values, rng, elements):
            changed = {**values, entry: value}
            yield f"{where} {entry}", change, lambda n=number, v=changed: forge(path, rows, n, 4, pack(v))
        for place, (column, found) in enumerate(COLUMNS.items(), start=1):
            for value in found:
                apply = partial(forge, path, rows, number, place, value)
                yield f"{where} column {column}", f"{value!r:.20}", apply


def changes_of_files(path: Path, rng: np.random.Generator, elements: int, run_id: str) -> Iterator[Change]:
    """One value of the snapshot at a time, and other lengths of every file."""
    files = RunFiles(side_directory(path), bytes.fromhex(run_id))
    (snapshot,) = files.numbers(SNAPSHOT)
    held = files.read(SNAPSHOT, snapshot)
    for entry, change, value in mutations(held, rng, elements):
        yield f"snapshot {entry}", change, partial(files.write, SNAPSHOT, snapshot, {**held, entry: value})
    for file in sorted([path, *side_directory(path).iterdir()]):
        for length in lengths(file.stat().st_size):
            yield f"length of {file.name}", str(length), partial(os.truncate, file, length)


QUESTIONS: dict[str, Callable[[Path], object]] = {
    "show": lambda path: with_record(path, lambda record: figures(summarise(record))),
    "diagnose": diagnose,
    "export": lambda path: with_record(path, lambda record: export_csv(record, path.with_name("csv"))),
    "attachments": lambda path: with_record(path, lambda record: record.last_attachments()),
    "replay": lambda path: with_record(path, lambda record: record.replay()),
    "verify": verify_run,
    "open": lambda path: play_on(path),
}


def with_record(path: Path, question: Callable[[Any], object]) -> object:
    """The answer of a record."""
    with read_run(path) as record:
        return question(record)


def play_on(path: Path) -> None:
    """Continue the run for a round."""
    with open_run(path, MAKERS["avare"]) as run:
        cohort = run.draw()
        run.observe(cohort, np.ones(len(cohort)))


def judge_files(
    directory: Path, rounds: int, seed: int, elements: int, every: int = 1
) -> Iterator[tuple[str, str, str]]:
    """For one in ``every`` changes: what was changed, to what, and what came of it, by question."""
    rng, path = np.random.default_rng(seed), directory / "run.db"
    recorded(path, rounds)
    whole = {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()}
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT * FROM events ORDER BY number").fetchall()
    run_id = unpack(rows[0][4])["run_id"]
    changes = [*changes_of_rows(path, rows, rng, elements), *changes_of_files(path, rng, elements, run_id)]
    for question in QUESTIONS.values():  # compile before the clock runs
        question(path)
    for entry, change, apply in changes[seed % every :: every]:
        faulthandler.dump_traceback_later(60.0, exit=True)
        for file in directory.rglob("*"):
            if file.is_file():
                file.unlink()
        for file, data in whole.items():
            file.write_bytes(data)
        try:
            apply()
        except SortitionError:
            continue  # no file can hold this
        for name, question in QUESTIONS.items():
            try:
                question(path)
                verdict = "fine"
            except SortitionError:
                verdict = "refused"
            except Exception as error:
                verdict = f"raw {error!r:.200}"
            yield f"{name}: {entry}", change, verdict
    faulthandler.cancel_dump_traceback_later()


def main() -> None:
    """Run a campaign, and print what went wrong and how much was tried."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaign", choices=["states", "files"])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutations", type=int, default=40, help="elements of each array that are changed")
    parser.add_argument("--samplers", default=",".join(MAKERS))
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    how = (options.rounds, options.seed, options.mutations)
    for name in ["avare"] if options.campaign == "files" else options.samplers.split(","):
        counts: Counter[str] = Counter()
        judged = judge(name, *how)
        if options.campaign == "files":
            directory = Path(tempfile.mkdtemp())
            judged = judge_files(directory, *how)
        for entry, change, verdict in judged:
            counts[verdict if verdict in ("refused", "fine") else "wrong"] += 1
            if verdict not in ("refused", "fine"):
                print(f"{name:<16} {entry} <- {change}: {verdict}", flush=True)
        print(f"{name:<16} {dict(counts)}", flush=True)
        totals += counts
    print(f"in all {sum(totals.values())}: {dict(totals)}")


if __name__ == "__main__":
    main()
