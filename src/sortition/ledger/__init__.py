"""The durable record of a run: every draw and every feedback is on disk before the call returns.

    from sortition import AdaptiveOSMDSampler
    from sortition.ledger import open_run

    def make_sampler():
        return AdaptiveOSMDSampler(num_clients=1000, cohort_size=10, num_rounds=500)

    with open_run("run.db", make_sampler) as run:      # begins the run, or continues it
        while run.round_index < 500 or run.open_cohorts():
            cohort = run.draw()                        # committed; after a crash, the same cohort again
            norms = train(cohort)
            run.attach(cohort.round_index, "model", {"weights": weights})   # a file of its own, synced
            run.observe(cohort, norms)                 # committed, then learnt from, once

``open_run`` gives a ``RecordedSampler``: the ``Sampler`` protocol, and beyond it

- ``round_index``: the round of the next new cohort; ``open_cohorts()``: the cohorts that await feedback;
- ``draw()`` first hands out the open cohorts that this process has not had yet, oldest first;
- ``observe()`` accepts the same feedback again, and refuses other feedback for the same round;
- ``add_clients``, ``remove_clients``, ``calibrate``: the sampler's methods, recorded;
- ``client_weights``, ``norm_bound_with``, ``suspects`` and others: what the sampler says; everything else of
  it is at ``sampler``;
- ``attach(round_index, name, arrays)`` and ``attachment(round_index, name)``: plain arrays, numbers and
  strings beside a round, such as the model. The newest two of a name are kept. Of a memory's state only the
  rows that have changed are written. Attach before ``observe``; to resume, take the attachment of
  ``last_observed``, the round whose feedback came last. It is None if the file is gone;
- ``log(loss=0.3)`` and ``logged()``: numbers of the round that was drawn last, for tables and curves;
- ``note(round_index, name, values)`` and ``notes(name)``: small values in rows of the run, kept for good;
- ``name_clients(clients, names)``: what the commands call the clients;
- ``close()``, which the end of a ``with`` block calls.

``read_run(path)`` reads a run while it is being written or, with ``good=True``, what is good of a damaged
one; ``verify_run(path)`` replays it from the start.
``docs/reference/ledger.md`` says what the ledger promises, ``docs/research/ledger.md`` how it works.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sortition.ledger.record import Round, RunRecord, read_run
    from sortition.ledger.recorded import RecordedSampler, open_run
    from sortition.ledger.verify import Verified, verify_run

__all__ = ["RecordedSampler", "Round", "RunRecord", "Verified", "open_run", "read_run", "verify_run"]

_HOME = {
    "RecordedSampler": "sortition.ledger.recorded",
    "Round": "sortition.ledger.record",
    "RunRecord": "sortition.ledger.record",
    "Verified": "sortition.ledger.verify",
    "open_run": "sortition.ledger.recorded",
    "read_run": "sortition.ledger.record",
    "verify_run": "sortition.ledger.verify",
}
"""Where each name lives. Reading a run needs no sampler, and these take most of a second to import."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sortition.ledger' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
