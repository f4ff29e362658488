"""``sortition.diagnose``: from a table of norms, a recorded run or a problem to a verdict."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from sortition.core.errors import ConfigurationError
from sortition.core.validation import MOST_REPEATED, named_keywords, positive_number, whole_number
from sortition.lab.diagnosis.batch_norms import BatchSampler, measure_batches
from sortition.lab.diagnosis.findings import CHOICES, Diagnosis
from sortition.lab.diagnosis.known_norms import measure_norms
from sortition.lab.diagnosis.norm_table import NormTable, read_norms
from sortition.lab.diagnosis.pilots import train_pilots
from sortition.lab.diagnosis.recorded_run import measure_run
from sortition.lab.diagnosis.trained_problem import measure_problem
from sortition.lab.imported import blaming
from sortition.lab.parallel import Tick
from sortition.lab.training import check_problem
from sortition.ledger import RunRecord, read_run
from sortition.ledger.store import counted

ROUNDS = 200
NO_PILOTS = (
    "Training does not lower the loss in so few rounds, or diverges with some draws: pilots say nothing."
)


@named_keywords
def diagnose(
    source: Any,
    *,
    cohort_size: int | None = None,
    step_size: float | None = None,
    num_rounds: int = ROUNDS,
    pilots: bool = True,
    seed: int = 0,
    tick: Tick = lambda: None,
) -> Diagnosis:
    """Will adaptive sampling save rounds? A verdict, with the figures behind it.

    ``source`` is one of

    - a path that ends in ``.csv``, or a ``NormTable``: norms of all clients, in one round or in several;
    - a path of a recorded run, or a ``RunRecord``, also of a Flower run;
    - an ``AdaptiveBatchSampler`` or its ``TicketLoader`` after the first epoch: examples and batches instead
      of clients and cohorts;
    - a problem, as in ``sortition.lab.training.Problem``: it is trained for ``num_rounds`` rounds with the
      default sampler at ``step_size``, to measure the noise, and with each choice, several times, at a step
      of its own. These ``pilots`` are about 150 trainings. Without them the verdict is a prediction.

    ``cohort_size`` is today's K; a recorded run knows it. ``tick`` is called as the work advances.

    >>> from sortition.lab.diagnosis.norm_table import NormTable
    >>> table = NormTable(sizes=[1, 1, 1, 1], norms=[1.0, 1.0, 1.0, 9.0])
    >>> diagnose(table, cohort_size=1).verdict
    'adaptive'
    """
    whole_number("num_rounds", num_rounds, least=1, most=MOST_REPEATED)
    whole_number("seed", seed, least=0)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if path.suffix.lower() == ".csv":
            return _of_table(read_norms(path), path.name, cohort_size, seed, tick)
        with read_run(path) as record:
            return _of_run(record, cohort_size, seed, tick)
    if isinstance(source, NormTable):
        return _of_table(source, "Norms", cohort_size, seed, tick)
    if isinstance(source, RunRecord):
        return _of_run(source, cohort_size, seed, tick)
    batches = getattr(source, "sampler", source)  # of a TicketLoader
    if hasattr(batches, "tickets"):
        return _of_batches(batches, cohort_size)
    if not hasattr(source, "updates"):
        raise ConfigurationError(
            "source must be a path of norms (.csv) or of a recorded run, a NormTable, a RunRecord, "
            f"an AdaptiveBatchSampler, a TicketLoader or a problem, got {type(source).__name__}"
        )
    with blaming(f"problem {type(source).__name__}"):
        check_problem(source)
        if step_size is None:
            raise ConfigurationError("step_size must be given for a problem: the step that you train it with")
        noise = measure_problem(
            source,
            _size(cohort_size, len(source.client_weights)),
            step_size=positive_number("step_size", step_size),
            num_rounds=num_rounds,
            seed=seed,
            tick=tick,
        )
        if pilots:
            trained = train_pilots(
                source,
                [choice for choice in CHOICES if choice in noise.sampling],
                noise.cohort_size,
                step_size=step_size,
                num_rounds=num_rounds,
                seed=seed,
                tick=tick,
            )
            notes = () if trained else (NO_PILOTS,)
            noise = replace(noise, pilots=trained, notes=(*noise.notes, *notes))
    rounds = counted(num_rounds, "round")
    return Diagnosis(f"{type(source).__name__}, {rounds} at step {step_size:g}", noise, seed)


def _of_batches(sampler: BatchSampler, cohort_size: int | None) -> Diagnosis:
    if cohort_size not in (None, sampler.batch_size):
        raise ConfigurationError(
            f"cohort_size of a batch sampler is its batch_size, {sampler.batch_size}; leave it out, "
            f"got {cohort_size}"
        )
    noise = measure_batches(sampler)
    return Diagnosis(f"{noise.num_clients} examples, batches of {noise.cohort_size}", noise)


def _of_table(table: NormTable, name: str, cohort_size: int | None, seed: int, tick: Tick) -> Diagnosis:
    noise = measure_norms(table, _size(cohort_size, table.num_clients), seed=seed, tick=tick)
    rounds = "one pass" if table.num_rounds == 1 else f"{table.num_rounds} rounds"
    return Diagnosis(f"{name}, {rounds}", noise, seed)


def _of_run(record: RunRecord, cohort_size: int | None, seed: int, tick: Tick) -> Diagnosis:
    noise = measure_run(record, seed=seed, tick=tick)
    if cohort_size not in (None, noise.cohort_size):
        raise ConfigurationError(
            f"cohort_size of a recorded run is its own, {noise.cohort_size}; leave it out, got {cohort_size}"
        )
    return Diagnosis(f"{record.path.name}, {noise.num_rounds} rounds of {record.sampler}", noise, seed)


def _size(cohort_size: int | None, num_clients: int) -> int:
    if cohort_size is None:
        raise ConfigurationError("cohort_size must be given: the clients that you draw in a round today")
    return whole_number("cohort_size", cohort_size, least=1, most=num_clients)
