"""Power may fail: what is on the platter, and in which order it came there.

The order that the promise rests on: nothing is named, replaced or thrown away before what it relies on was
synced, and the database syncs every commit. What a cut would then leave is in ``test_power.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sortition.ledger import open_run
from sortition.ledger.store import Store
from tests.ledger.helpers import make, norms_of, play


@pytest.fixture
def steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to the disk, in order; files by name, without the numbers of snapshots."""
    done: list[str] = []

    def name(file: Any) -> str:
        found = Path(os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file).name
        return re.sub(r"-\d{9}", "", found)

    def recording(module: Any, function: str, word: str, target: int) -> None:
        original = getattr(module, function)

        def recorded(*arguments: Any, **options: Any) -> Any:
            named = word + " " + (name(arguments[target]) if target >= 0 else arguments[1])
            result = original(*arguments, **options)
            done.append(named)
            return result

        monkeypatch.setattr(module, function, recorded)

    recording(os, "fsync", "sync", 0)
    recording(os, "replace", "rename to", 1)
    recording(os, "rename", "rename to", 1)
    recording(os, "unlink", "remove", 0)
    recording(Store, "append", "commit", -1)
    return done


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names descriptors by /proc")


@needs_proc
def test_an_attachment_is_durable_before_the_feedback_that_follows_it(path: Path, steps: list[str]) -> None:
    """If the feedback of a round is there after a power cut, so is its model."""
    with open_run(path, make) as run:
        cohort = run.draw()
        steps.clear()
        run.attach(0, "model", {"w": 1})
        run.observe(cohort, norms_of(cohort))
        assert steps == [
            "sync attachment_model.unfinished",
            "rename to attachment_model",
            "sync run.db.d",
            "commit observed",
        ]


@needs_proc
def test_a_snapshot_is_durable_before_an_older_one_goes(path: Path, steps: list[str]) -> None:
    """And it comes after the row that it was taken at: it never knows more than the database."""
    with open_run(path, make, snapshot_every=1) as run:
        play(run, 2)
        steps.clear()
        run.draw()
        assert steps == [
            "commit drawn",
            "sync snapshot.unfinished",
            "rename to snapshot",
            "sync run.db.d",
            "remove snapshot",
        ]


@needs_proc
def test_a_new_run_has_its_name_made_durable(path: Path, steps: list[str]) -> None:
    with open_run(path, make):
        assert steps == ["rename to run.db", "sync run.db.d", f"sync {path.parent.name}"]


def test_the_database_syncs_every_commit(path: Path) -> None:
    with open_run(path, make) as run:
        query = run._store._connection.execute
        assert query("PRAGMA journal_mode").fetchone() == ("wal",)
        assert query("PRAGMA synchronous").fetchone() == (2,)  # FULL


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_the_kernel_is_asked_to_sync_before_a_call_returns(path: Path, tmp_path: Path) -> None:
    """As the kernel sees it: between the start and the return of each call the log of rows is synced."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "from sortition.ledger import open_run\n"
        "from tests.ledger.helpers import make, norms_of\n"
        "with open_run(sys.argv[1], make) as run:\n"
        "    for _ in range(3):\n"
        "        os.path.exists('/before')\n"
        "        cohort = run.draw()\n"
        "        os.path.exists('/drawn')\n"
        "        run.observe(cohort, norms_of(cohort))\n"
        "        os.path.exists('/observed')\n"
    )
    trace = tmp_path / "trace"
    traced = ["strace", "-f", "-y", "-e", "trace=fsync,fdatasync,stat,newfstatat,statx", "-o", str(trace)]
    found = subprocess.run(
        [*traced, sys.executable, str(program), str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    if "ptrace" in found.stderr or "PTRACE" in found.stderr:
        pytest.skip("strace may not trace here")
    assert found.returncode == 0, found.stderr
    lines = trace.read_text().splitlines()
    marks = [i for i, line in enumerate(lines) if re.search(r'"/(before|drawn|observed)"', line)]
    assert len(marks) == 9
    for start, end in pairwise(marks):
        if '"/before"' not in lines[end]:
            assert any("sync(" in line and "run.db-wal" in line for line in lines[start:end])
