"""Runs of a sampler that the library can't build: what is known without it, and what needs its maker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sortition import LedgerError
from sortition.cli.commands import app
from sortition.ledger import open_run, read_run, verify_run
from tests.ledger.helpers import CLIENTS, COHORT_SIZE, OwnSampler, Strange, guarded, own, play, state_bytes


def foreign() -> Strange:
    return Strange(guarded())


@pytest.mark.parametrize("make_own", [foreign, own])
def test_verify_says_when_nothing_was_replayed(path: Path, make_own: Callable[[], Any]) -> None:
    """Status 0: what can be checked without the sampler is as it was; docs/ledger.md says so."""
    with open_run(path, make_own) as run:
        play(run, 2)
    found = CliRunner().invoke(app, ["runs", "verify", str(path)])
    assert found.exit_code == 0
    first, second = found.output.splitlines()
    assert first.endswith("5 rows, 2 rounds, 1 snapshot, 0 attachments: all as they were written")
    assert second.startswith("only the checksums were checked: no cohort was drawn again")
    assert f"does not say how to build its {type(make_own()).__name__};" in second
    assert verify_run(path, make_own).replayed


@pytest.mark.parametrize("make_own", [foreign, own])
def test_replay_takes_whoever_builds_it(path: Path, make_own: Callable[[], Any]) -> None:
    with open_run(path, make_own) as run:
        play(run, 3)
        expected = state_bytes(run)
    kind = type(make_own()).__name__
    with read_run(path) as record:
        assert not record.rebuildable
        with pytest.raises(LedgerError, match=f"make_sampler must be given, .* build its {kind}, got None"):
            record.replay()
        assert state_bytes(record.replay(make_own)) == expected


def test_replay_refuses_another_sampler(path: Path) -> None:
    with open_run(path, own) as run:
        play(run, 3)
    with read_run(path) as record, pytest.raises(LedgerError, match=f"cohort_size = {COHORT_SIZE}, got 5"):
        record.replay(lambda: OwnSampler(num_clients=CLIENTS, cohort_size=5))
