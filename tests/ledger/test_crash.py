"""Killed at 200 points, at any line and within system calls, a run goes on as if nothing had happened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.encoding import same_cohort, same_norms
from tests.helpers import same_state
from tests.ledger import crash_child
from tests.ledger.helpers import state_bytes

CRASHES = 220
HANG = 3600.0
"""Seconds; ends a test that waits for ever."""


def test_killed_runs_equal_the_unbroken_one(tmp_path: Path) -> None:
    program = [sys.executable, crash_child.__file__, str(tmp_path), str(CRASHES), "1"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["crashes"] >= 200

    expected = list(read_run(tmp_path / "unbroken.db").rounds())
    assert len(expected) == crash_child.ROUNDS
    with open_run(tmp_path / "unbroken.db", crash_child.make) as unbroken:
        final = state_bytes(unbroken)
        expected_model = unbroken.attachment(crash_child.ROUNDS - 1, "model")
        assert expected_model is not None
    for path in report["runs"]:
        assert verify_run(path).rounds == crash_child.ROUNDS
        with read_run(path) as record:
            for one, other in zip(expected, record.rounds(), strict=True):
                assert same_cohort(one.cohort, other.cohort)
                assert same_norms(one.norms, other.norms)
        tickets: dict[str, str] = {}
        for line in Path(path + ".log").read_text().splitlines():
            what, round_index, ticket = line.split()
            if what == "drawn":  # whatever a caller was given, it stays: nothing is drawn twice
                assert tickets.setdefault(round_index, ticket) == ticket
        for round_ in expected:
            assert tickets[str(round_.cohort.round_index)] == str(round_.cohort.ticket)
        with open_run(path, crash_child.make) as run:
            assert state_bytes(run) == final
            assert run.last_observed == crash_child.ROUNDS - 1
            model = run.attachment(crash_child.ROUNDS - 1, "model")
            assert model is not None
            assert same_state(model, expected_model)  # every answer in it once
