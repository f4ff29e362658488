"""Sampler and ledger together: whatever happens to the recorded one, it equals the one that never stopped."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sortition import AvareSampler, Cohort, CohortError, Guard, LedgerError, OSMDSampler
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.encoding import same_cohort, same_norms
from tests.ledger.helpers import crash, state_bytes
from tests.ledger.test_full_disk import FULL, failing

CLIENTS = 7


def build(kind: str) -> Any:
    if kind == "osmd":
        return OSMDSampler(num_clients=CLIENTS, cohort_size=3, learning_rate=0.05, guard=Guard())
    return AvareSampler(num_clients=CLIENTS, cohort_size=2, design="independent", seed=4)


class LedgerMachine(RuleBasedStateMachine):
    """``plain`` is the model: the same sampler, never recorded, never interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.path = self.directory / "run.db"
        self.waiting: dict[int, Cohort] = {}  # open cohorts that the caller has in hand
        self.lost: list[Cohort] = []  # open cohorts that a crash took out of the caller's hands
        self.answered: list[tuple[Cohort, Any]] = []

    @initialize(kind=st.sampled_from(["osmd", "avare"]), every=st.sampled_from([1, 2, 1000]))
    def begin(self, kind: str, every: int) -> None:
        self.kind, self.every = kind, every
        self.plain = build(kind)
        self.open()

    def open(self) -> None:
        self.run = open_run(self.path, lambda: build(self.kind), snapshot_every=self.every)

    @rule(some=st.none() | st.sets(st.integers(0, CLIENTS - 1), min_size=1, max_size=6))
    def draw(self, some: set[int] | None) -> None:
        if self.lost:
            expected = self.lost.pop(0)
        else:
            here = None
            if some is not None:
                here = [c for c in sorted(some) if self.plain.probabilities([c])[0] > 0.0] or None
            expected = self.plain.draw(here)
            some = None if here is None else set(here)
        drawn = self.run.draw(None if some is None else sorted(some))
        assert same_cohort(drawn, expected)
        self.waiting[drawn.round_index] = drawn

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), twice=st.booleans())
    def observe(self, data: st.DataObject, twice: bool) -> None:
        cohort = self.waiting.pop(data.draw(st.sampled_from(sorted(self.waiting))))
        norm = st.floats(0.0, 1e6) | st.just(float("nan"))
        norms = data.draw(st.lists(norm, min_size=len(cohort), max_size=len(cohort)))
        self.plain.observe(cohort, norms)
        self.run.observe(cohort, norms)
        if twice:
            self.run.observe(cohort, norms)
        self.answered.append((cohort, np.array(norms)))

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def observe_again(self, data: st.DataObject) -> None:
        cohort, norms = data.draw(st.sampled_from(self.answered))
        self.run.observe(cohort, norms)
        if len(cohort):
            with pytest.raises(CohortError):
                self.run.observe(cohort, np.where(np.isnan(norms), 1.0, norms + 1.0))

    @rule()
    def crash_and_reopen(self) -> None:
        crash(self.run)
        self.open()
        self.lost = sorted([*self.lost, *self.waiting.values()], key=lambda cohort: cohort.round_index)
        self.waiting = {}

    @rule()
    def close_and_reopen(self) -> None:
        self.run.close()
        self.open()
        self.lost = sorted([*self.lost, *self.waiting.values()], key=lambda cohort: cohort.round_index)
        self.waiting = {}

    @rule(after=st.booleans())
    def fail_to_draw(self, after: bool) -> None:
        if self.lost:
            return
        with failing(self.run, FULL, after), pytest.raises(LedgerError):
            self.run.draw()
        if after:  # on disk all the same: it will be handed out by the next call
            self.lost.append(self.plain.draw())

    @precondition(lambda self: self.plain.num_clients > 4)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        here = np.flatnonzero(self.plain.probabilities() > 0.0).tolist()
        client = data.draw(st.sampled_from(here))
        self.plain.remove_clients([client])
        self.run.remove_clients([client])

    @rule()
    def join(self) -> None:
        assert np.array_equal(self.plain.add_clients(1), self.run.add_clients(1))

    @rule()
    def verify(self) -> None:
        assert verify_run(self.path).replayed

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "run"):
            return
        assert state_bytes(self.run) == state_bytes(self.plain)
        assert len(self.run.open_cohorts()) == len(self.waiting) + len(self.lost)

    def teardown(self) -> None:
        if hasattr(self, "run"):
            with read_run(self.path) as record:
                found = {r.cohort.round_index: r for r in record.rounds()}
            for cohort, norms in self.answered:
                assert same_norms(found[cohort.round_index].norms, norms)
            self.run.close()
            assert verify_run(self.path).replayed
        shutil.rmtree(self.directory)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
