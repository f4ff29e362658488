"""The power is cut, in a simulation: whatever the disk may hold then, the run goes on as if nothing had been.

A run is made once, and its system calls are recorded. From them the directory is built as a power cut could
have left it, after any of the calls and with any part of what was not synced (``power_disk.py``).
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sortition.core.errors import SortitionError
from sortition.ledger import Round, open_run, read_run, verify_run
from sortition.ledger.encoding import same_cohort, same_norms
from sortition.ledger.files import RunFiles, side_directory
from sortition.ledger.store import Store
from tests.helpers import same_state
from tests.ledger import crash_child, power_child
from tests.ledger.helpers import state_bytes
from tests.ledger.power_disk import HOW, after_cut
from tests.ledger.power_trace import Mark, Reader, Step, Sync, record

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")

PROGRAM = Path(power_child.__file__)
STATES = 300


@dataclass(frozen=True)
class Unbroken:
    """The run without a power cut."""

    steps: list[Step]
    files: dict[str, tuple[bytes, int | None]]
    rounds: list[Round]
    state: bytes
    model: Any


@pytest.fixture(scope="module")
def room() -> Iterator[Path]:
    """Where directories are made: in memory, for what a disk does is simulated."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory).resolve()


@pytest.fixture(scope="module")
def unbroken(room: Path) -> Unbroken:
    """Made and recorded."""
    directory = room / "unbroken"
    directory.mkdir()
    path = directory / "run.db"
    steps = list(Reader(directory).steps(record(PROGRAM, path)))
    files = files_in(directory)
    with read_run(path) as found, open_run(path, crash_child.make) as run:
        model = run.attachment(crash_child.ROUNDS - 1, "model")
        return Unbroken(steps, files, list(found.rounds()), state_bytes(run), model)


def cut(steps: Sequence[Step], room: Path, chance: random.Random, how: str = "") -> Path:
    """A new directory as a power cut after the last of ``steps`` may leave it; where the run is in it."""
    directory = Path(tempfile.mkdtemp(dir=room))
    after_cut(steps, directory, chance, how)
    if chance.random() < 0.5:  # SQLite's index of the log is not followed: it is gone, or worth nothing
        (directory / "run.db-shm").write_bytes(chance.randbytes(32768))
    return directory / "run.db"


def check(path: Path, steps: Sequence[Step], unbroken: Unbroken) -> None:
    """What had returned before the cut is there, and the run can be continued to the same end."""
    returned = [step.text.split() for step in steps if isinstance(step, Mark)]
    rounds: dict[int, Round] = {}
    if path.exists():
        assert verify_run(path).replayed
        with read_run(path) as found:
            rounds = {round_.cohort.round_index: round_ for round_ in found.rounds()}
    for what, number, _ in returned:
        if what == "drawn":
            assert same_cohort(rounds[int(number)].cohort, unbroken.rounds[int(number)].cohort)
        elif what == "observed":
            assert same_norms(rounds[int(number)].norms, unbroken.rounds[int(number)].norms)
    attached = [int(number) for what, number, _ in returned if what == "attached"]
    if attached:
        assert attachment(path, attached[-1]) is not None
    drawn: list[tuple[int, int]] = []

    def note(text: str) -> None:
        what, number, ticket = text.split()
        if what == "drawn":
            drawn.append((int(number), int(ticket)))

    crash_child.drive(str(path), note)
    still_open = [number for number, round_ in rounds.items() if round_.norms is None]
    assert [number for number, _ in drawn] == [*still_open, *range(len(rounds), crash_child.ROUNDS)]
    assert all(unbroken.rounds[number].cohort.ticket == ticket for number, ticket in drawn)
    assert verify_run(path).rounds == crash_child.ROUNDS
    with read_run(path) as found:
        for one, other in zip(unbroken.rounds, found.rounds(), strict=True):
            assert same_cohort(one.cohort, other.cohort)
            assert same_norms(one.norms, other.norms)
    with open_run(path, crash_child.make) as run:
        assert state_bytes(run) == unbroken.state
        model = run.attachment(crash_child.ROUNDS - 1, "model")
        assert model is not None
        assert same_state(model, unbroken.model)


def attachment(path: Path, round_index: int) -> dict[str, Any] | None:
    """The model of that round, without opening the run for writing."""
    store = Store(path, write=False)
    try:
        run_id = bytes.fromhex(store.event(0).values()["run_id"])
        return RunFiles(side_directory(path), run_id).attachment(round_index, "model")
    finally:
        store.close()


def cuts(steps: Sequence[Step], wanted: int, chance: random.Random) -> list[tuple[int, str]]:
    """Where to cut and what is left: after every sync, and anywhere else until there are enough."""
    at = [number + 1 for number, step in enumerate(steps) if isinstance(step, Sync)]
    at += [chance.randint(0, len(steps)) for _ in range(wanted - len(at))]
    return [(end, chance.choice(("", *HOW))) for end in chance.sample(at, len(at))]


def failure(steps: Sequence[Step], how: str, room: Path, unbroken: Unbroken) -> str | None:
    """What goes wrong after a power cut at the end of ``steps``, in words."""
    path = cut(steps, room, random.Random(len(steps)), how)
    try:
        check(path, steps, unbroken)
    except (AssertionError, SortitionError, KeyError) as error:
        return f"cut after step {len(steps)}, {steps[-1:]}, left of the rest: {how or 'mixed'}: {error!r}"
    finally:
        shutil.rmtree(path.parent)
    return None


def failures(steps: Sequence[Step], room: Path, unbroken: Unbroken) -> Iterator[str]:
    """What goes wrong after any of many power cuts."""
    for end, how in cuts(steps, STATES, random.Random(1)):
        found = failure(steps[:end], how, room, unbroken)
        if found is not None:
            yield found


def test_the_trace_tells_all_that_was_done(unbroken: Unbroken, room: Path) -> None:
    """With nothing lost, the files are those that the program left, to the byte."""
    rebuilt = Path(tempfile.mkdtemp(dir=room))
    after_cut(unbroken.steps, rebuilt, random.Random(0), "all")
    assert files_in(rebuilt) == unbroken.files
    marks = [step.text for step in unbroken.steps if isinstance(step, Mark)]
    assert len(set(marks)) == 3 * crash_child.ROUNDS + 1
    assert len(marks) > len(set(marks)) + 1  # closed twice, and a cohort that was open then handed out again


def files_in(directory: Path) -> dict[str, tuple[bytes, int | None]]:
    """Their bytes, and the times that matter."""
    return {
        str(file.relative_to(directory)): (
            file.read_bytes(),
            file.stat().st_mtime_ns if "-0" in file.name else None,
        )
        for file in directory.rglob("*")
        if file.is_file() and not file.name.endswith("-shm")
    }


def test_a_run_survives_a_power_cut_at_any_point(unbroken: Unbroken, room: Path) -> None:
    assert list(failures(unbroken.steps, room, unbroken)) == []


@pytest.mark.parametrize(
    "unsynced", ["run.db-wal", "run.db", "new.db", ".unfinished", "run.db.d", "unbroken"]
)
def test_without_any_of_its_syncs_it_would_not(unsynced: str, unbroken: Unbroken, room: Path) -> None:
    """So the simulation can fail: it notices the lack of each kind of sync, of the ledger's or SQLite's."""
    steps = [s for s in unbroken.steps if not (isinstance(s, Sync) and s.path.endswith(unsynced))]
    assert len(steps) < len(unbroken.steps)
    assert next(failures(steps, room, unbroken), None) is not None


def test_what_a_killed_writer_had_not_synced_is_synced_before_it_is_relied_on(
    unbroken: Unbroken, room: Path
) -> None:
    """Killed between writing a row and syncing it; continued, which finds the row; then the power goes."""
    drawn = next(
        n for n, step in enumerate(unbroken.steps) if isinstance(step, Mark) and "drawn 7" in step.text
    )
    syncs = sum(isinstance(step, Sync) and step.call == "fdatasync" for step in unbroken.steps[:drawn])
    directory = room / "killed"
    directory.mkdir()
    path, reader = directory / "run.db", Reader(directory)
    killed = list(reader.steps(record(PROGRAM, path, "-e", f"inject=fdatasync:signal=SIGKILL:when={syncs}")))
    steps = [*killed, *reader.steps(record(PROGRAM, path))]
    marks = [step for step in steps[len(killed) :] if isinstance(step, Mark)]
    assert marks[0] == unbroken.steps[drawn]
    assert marks[0] not in killed
    ends = range(len(killed), steps.index(marks[3]))  # until the next row is synced, and with it this one
    found = [failure(steps[:end], how, room, unbroken) for end in ends for how in ("nothing", "")]
    assert [trouble for trouble in found if trouble] == []
