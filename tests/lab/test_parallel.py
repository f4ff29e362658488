"""Tasks over processes: what happens when one of them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sortition.core.errors import WorkerError
from sortition.lab.parallel import Tick, run_tasks

GIVE_UP_SECONDS = 600.0


def work_for_ever(directory: Path, tick: Tick) -> None:
    """Say who works, and tick until nobody is left to count."""
    (directory / f"{os.getpid()}.worker").touch()
    while True:
        tick()
        time.sleep(0.01)


def wait_for_ever(directory: Path, tick: Tick) -> None:
    """Like it, without a tick: nothing that the parent could stop."""
    (directory / f"{os.getpid()}.worker").touch()
    time.sleep(10 * GIVE_UP_SECONDS)


def be_killed(tick: Tick) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def be_patient(tick: Tick) -> None:
    while True:
        tick()
        time.sleep(0.01)


def succeed(tick: Tick) -> None:
    tick()


def fail(tick: Tick) -> None:
    raise ZeroDivisionError("seven")


def workers_of(directory: Path) -> list[int]:
    return [int(path.stem) for path in directory.glob("*.worker")]


@pytest.mark.skipif(sys.platform == "win32", reason="it has no SIGKILL")
def test_workers_end_when_their_parent_is_killed(tmp_path):
    """The standard output of the parent is theirs too: it is at its end when the last of them is gone."""
    program = (
        "import sys; from pathlib import Path; from functools import partial\n"
        "from sortition.lab.parallel import run_tasks\n"
        "from tests.lab.test_parallel import wait_for_ever, work_for_ever\n"
        "directory = Path(sys.argv[1])\n"
        "if __name__ == '__main__':\n"
        "    run_tasks([partial(work_for_ever, directory), partial(wait_for_ever, directory)], jobs=2)\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(program)
    parent = subprocess.Popen(
        [sys.executable, script, tmp_path],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        begun = time.monotonic()
        while len(workers_of(tmp_path)) < 2:
            assert parent.poll() is None
            assert time.monotonic() < begun + GIVE_UP_SECONDS
            time.sleep(0.05)
        parent.kill()
        parent.communicate(timeout=GIVE_UP_SECONDS)  # raises if a worker still holds the other end
    finally:
        parent.kill()
        for worker in workers_of(tmp_path):
            try:
                os.kill(worker, signal.SIGKILL)
            except ProcessLookupError:
                continue
    assert parent.returncode == -signal.SIGKILL


def test_a_killed_worker_is_an_error_that_says_what_it_was_at():
    with pytest.raises(WorkerError, match="the second"):
        run_tasks([be_patient, be_killed], jobs=2, names=["the first", "the second"])


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_says_which_task_it_came_from(jobs):
    with pytest.raises(ZeroDivisionError) as caught:
        run_tasks([succeed, fail], jobs, names=["the first", "the second"])
    assert caught.value.__notes__ == ["in the second"]


def test_classes_of_a_script_go_there_and_back(tmp_path):
    """As in a script or a notebook: neither the task nor its result can be imported by a worker."""
    script = tmp_path / "script.py"
    script.write_text(
        "from dataclasses import dataclass\n"
        "from sortition.lab.parallel import run_tasks\n"
        "@dataclass\n"
        "class Outcome:\n"
        "    value: int\n"
        "def task(tick):\n"
        "    return Outcome(7)\n"
        "if __name__ == '__main__':\n"
        "    print(run_tasks([task, task], jobs=2) == [Outcome(7), Outcome(7)])\n"
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("True\n", "")


def test_a_script_without_a_main_guard_is_told_what_to_do(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from sortition.lab.parallel import run_tasks\n"
        "def task(tick):\n"
        "    return 7\n"
        "run_tasks([task, task], jobs=2)\n"
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "or take jobs=1\n" in result.stderr  # Python itself may warn of semaphores behind it
    assert result.stderr.count("Traceback") == 1
