"""The ledger of a run: whether it will do, and where it says that the run stands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from sortition.core.errors import ConfigurationError, LedgerError, SortitionError
from sortition.core.types import FloatArray
from sortition.ledger import RecordedSampler, read_run
from sortition.ledger.files import run_file, side_directory
from sortition.ledger.store import check_header

STATE, CLIENTS = "flower", "flower_clients"
"""Attachments: the whole state, written as a round ends, and who is who, written as newcomers join."""


def ledger_file(ledger: str | os.PathLike[str]) -> Path:
    """Where the run is or will be; an error if it can't be written, or holds something else.

    The run itself is opened once it is known how many clients there are. Nothing is made or changed here.
    """
    try:
        run = run_file(ledger)
    except SortitionError:
        raise ConfigurationError(f"ledger must name a file, got {ledger!r}") from None
    if os.path.exists(run):
        try:
            check_header(run)
        except LedgerError as error:
            raise LedgerError(f"ledger must be a run to continue or a new file: {error}") from None
    elif not os.path.isdir(run.parent):
        raise ConfigurationError(f"ledger must be in a directory that exists, got {str(ledger)!r}")
    for place in (run.parent, side_directory(run), run):
        needed = os.W_OK | os.X_OK if os.path.isdir(place) else os.W_OK
        if os.path.exists(place) and not os.access(place, needed):
            raise ConfigurationError(
                f"ledger must be where {place} can be written to, got {os.fspath(ledger)!r}"
            )
    return run


def founding(ledger: Path) -> tuple[int, FloatArray]:
    """How many clients the default sampler of the run was built for, and their weights."""
    with read_run(ledger) as record:
        settings, kind = record.settings, record.sampler
    if "num_clients" not in settings:
        raise LedgerError(
            f"sampler must be given, as it was when the run in {ledger} began, got a run of {kind}"
        )
    founders, weights = int(settings["num_clients"]), settings.get("client_weights")
    alike = np.full(founders, 1.0 / founders)
    return founders, alike if weights is None else np.asarray(weights, dtype=float)


def left_at(run: RecordedSampler, ledger: Path) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The state after the last complete round, and what is known of the clients, which may be newer.

    Both None before the first round. Who joined in a round that is not over is known from its beginning. But
    a cohort that is asked again after a crash may be heard after clients have joined for the next round: then
    the state of its end is the newer one. Whatever is written as clients join knows more of them than all
    that was written before, and as many or less than what was written afterwards.
    """
    last = -1 if run.last_observed is None else run.last_observed
    state = run.attachment(last, STATE) if last >= 0 else None
    if last >= 0 and state is None:
        raise LedgerError(
            f"ledger must be a run of AdaptiveSampling, but {ledger} has no state of its rounds"
        )
    joined = (run.attachment(number, CLIENTS) for number in range(last + 1, run.round_index + 1))
    found = [kept for kept in (state, *joined) if kept is not None]
    return state, max(found, key=lambda kept: np.size(kept.get("met", ())), default=None)
