"""A run that is killed again and again: by itself at a given line, or by its parent within a system call.

Started as a program: ``python crash_child.py DIRECTORY CRASHES SEED``. What happened is printed as one line
of JSON. Children are forked from a process that has imported and compiled everything, so a crash is cheap.
When a child is killed is counted in lines and calls, not in time: a slow machine gets as far as a fast one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import sortition.ledger
from sortition import AdaptiveOSMDSampler, Cohort, Memory
from sortition.ledger import open_run

ROUNDS, PARAMETERS = 24, 50
LEDGER = str(Path(sortition.ledger.__file__).parent)
SYSTEM_CALLS = {"execute", "open", "write", "flush", "fsync", "utime", "replace", "rename", "pwrite", "flock"}
"""Functions in C that the ledger calls to change the disk; ``execute`` is SQLite's."""
MOST_CRASHES = 400
"""Of one run. Each child gets as far as its lines or calls, so a run needs far fewer."""


def make() -> AdaptiveOSMDSampler:
    """The sampler of the run."""
    return AdaptiveOSMDSampler(num_clients=40, cohort_size=4, num_rounds=ROUNDS, rate_scale=30.0)


def updates_of(cohort: Cohort) -> Any:
    """Updates that depend on the cohort alone; some clients do not reply."""
    clients = 1.7 * cohort.clients[:, None] + np.arange(PARAMETERS)
    updates = np.sin(clients) + 0.3 * np.sin(cohort.round_index + clients)
    updates[cohort.clients % 7 == 3] = np.nan
    return updates


def drive(path: str, note: Callable[[str], None] = lambda text: None) -> None:
    """What a server does: continue the run to its end. Every fifth round is answered one round late.

    Model and memory depend on the order of the answers, and the next draws on the memory: an answer that is
    lost, or learnt from twice, would show.
    """
    with open_run(path, make, snapshot_every=5) as run:
        model, late = np.zeros(PARAMETERS), None
        memory = Memory(num_parameters=PARAMETERS, num_clients=40)
        if run.last_observed is not None:
            kept = run.attachment(run.last_observed, "model")
            assert kept is not None
            model = kept["weights"]
            memory.load_state_dict(kept)

        def answer(cohort: Cohort) -> None:
            nonlocal model
            aggregate, norms = memory.combine(cohort, updates_of(cohort), run.client_weights)
            model = 0.9 * model + (cohort.round_index + 1.0) * aggregate
            run.attach(cohort.round_index, "model", {"weights": model, **memory.state_dict()})
            run.observe(cohort, norms)
            note(f"observed {cohort.round_index} 0\n")

        while run.round_index < ROUNDS or run.open_cohorts():
            cohort = run.draw()
            note(f"drawn {cohort.round_index} {cohort.ticket}\n")
            overtaken = run.last_observed is not None and run.last_observed > cohort.round_index
            if cohort.round_index % 5 == 4 and cohort.round_index < ROUNDS - 1 and not overtaken:
                late = cohort
                continue
            answer(cohort)
            if late is not None:
                answer(late)
                late = None


def killed_at_line(path: str, line: int, log: int) -> None:
    """Run, and die at the given line of the ledger's code, counted as they are executed."""
    left = [line]

    def tracer(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(LEDGER):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return tracer

    sys.settrace(tracer)
    drive(path, lambda text: os.write(log, text.encode()) and None)


def announcing(path: str, pipe: int, log: int) -> None:
    """Run, and write a byte to the pipe before each call of the ledger that changes the disk."""

    def profiler(frame: FrameType, event: str, function: Any) -> None:
        ours = frame.f_code.co_filename.startswith(LEDGER)
        if ours and event == "c_call" and function.__name__ in SYSTEM_CALLS:
            os.write(pipe, b".")

    sys.setprofile(profiler)
    drive(path, lambda text: os.write(log, text.encode()) and None)


def crash(path: str, log: int, chance: random.Random) -> bool:
    """Fork a child that continues the run and gets killed; False if it reached the end."""
    by_line = chance.random() < 0.6
    line, calls = chance.randint(1, 3000), chance.randint(1, 120)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if by_line:
                killed_at_line(path, line, log)
            else:
                announcing(path, writing, log)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    if not by_line:
        while calls and os.read(reading, 1):  # until the call is about to happen, or the child has ended
            calls -= 1
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reading)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit("a child failed instead of being killed: see above")
    return os.WIFSIGNALED(status)


def main(directory: str, wanted: int, seed: int) -> None:
    """Crash one run after another until there were enough crashes."""
    drive(os.path.join(directory, "unbroken.db"))
    chance = random.Random(seed)
    crashes, runs = 0, []
    while crashes < wanted:
        path = os.path.join(directory, f"run{len(runs)}.db")
        log = os.open(path + ".log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        own = 0
        while crash(path, log, chance):
            own += 1
            if own > MOST_CRASHES:
                raise SystemExit("no progress")
        os.close(log)
        crashes += own
        runs.append(path)
    print(json.dumps({"crashes": crashes, "runs": runs}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
