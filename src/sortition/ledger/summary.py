"""What a run amounts to: who was drawn, how often, and why."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.types import FloatArray
from sortition.ledger.record import RunRecord
from sortition.ledger.suspects import Suspicion, suspicion_of
from sortition.ledger.words import duration, expert_in_words, moment, settings_in_words
from sortition.samplers.guard import Suspect

LAST_NORMS = 3
CLIENT_COLUMNS = ("client", "draws", "no reply", "last probability", "last norms")


@dataclass(slots=True)
class ClientSummary:
    """One client that was drawn."""

    client: int
    draws: int = 0
    failures: int = 0
    """Rounds in which it did not reply."""
    probability: float = 0.0
    """What it was drawn with the last time."""
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_NORMS))
    """Its last norms, the newest last."""
    left: bool = False


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in figures; ``clients`` are the drawn ones, the most drawn first."""

    sampler: str
    cohort_size: int | None
    seed: int | None
    settings: str
    """What else the sampler was built with, in words."""
    experts: tuple[tuple[str, str], ...]
    """Of a portfolio, the place of each expert and, in words, what it is."""
    rounds: int
    open_rounds: int
    oldest_open: float | None
    """When the oldest cohort that awaits feedback was drawn."""
    draws: int
    replies: int
    failures: int
    present: int | None
    """The clients that can be drawn at the end, where the record says so."""
    everybody: int | None
    """All clients that there ever were, where the record says so."""
    coverage: float | None
    r"""The share of all clients there ever were that was drawn at least once."""
    effective_clients: float
    r"""How many clients drawn equally often would be as diverse: :math:`(\sum n_m)^2 / \sum n_m^2`."""
    begun_at: float
    continues: int | None
    """The next round of the state that was loaded at the start."""
    first_draw: float | None
    last_event: float
    clients: tuple[ClientSummary, ...]
    suspicion: Suspicion
    """Who hit the clip of the sampler's guard."""
    seen_by_round: FloatArray
    """After each round, the clients drawn so far."""
    effective_by_round: FloatArray
    """After each round, the effective number of clients so far."""
    replies_by_round: FloatArray
    """The share of the cohort that replied; nan for open rounds."""
    norms_by_round: FloatArray
    """The median of the norms; nan where there are none."""


def summarise(record: RunRecord) -> RunSummary:
    """Read the whole record, once."""
    clients: dict[int, ClientSummary] = {}
    seen, effective, replied, medians = [], [], [], []
    squares = draws = replies = failures = open_rounds = 0
    first: float | None = None
    oldest_open: float | None = None
    last = record.begun_at
    for round_ in record.rounds():
        first = round_.drawn_at if first is None else first
        last = max(last, round_.drawn_at or 0.0, round_.observed_at or 0.0)
        for known, count in zip(_met(clients, round_.cohort), round_.cohort.counts.tolist(), strict=True):
            squares += 2 * known.draws * count + count * count
            known.draws += count
            draws += count
        seen.append(len(clients))
        effective.append(draws * draws / squares if squares else 0.0)
        if round_.norms is None:
            open_rounds += 1
            oldest_open = round_.drawn_at if oldest_open is None else oldest_open
            replied.append(np.nan)
            medians.append(np.nan)
            continue
        for client, norm in zip(round_.cohort.clients.tolist(), round_.norms.tolist(), strict=True):
            if np.isnan(norm):
                clients[client].failures += 1
            else:
                clients[client].norms.append(norm)
        heard = round_.norms[~np.isnan(round_.norms)]
        replies += len(heard)
        failures += len(round_.norms) - len(heard)
        replied.append(len(heard) / len(round_.norms) if len(round_.norms) else np.nan)
        medians.append(float(np.median(heard)) if len(heard) else np.nan)
    everybody, gone = record.founders, record.gone
    present = None if everybody is None else everybody - len(gone)
    for client in gone.tolist():
        if client in clients:
            clients[client].left = True
    for change in record.memberships():
        last = max(last, change.time)
        if change.joined is not None and everybody is not None and present is not None:
            everybody, present = everybody + len(change.joined), present + len(change.joined)
        if change.left is not None:
            present = None if present is None else present - len(change.left)
            for client in change.left.tolist():
                if client in clients:
                    clients[client].left = True
    return RunSummary(
        sampler=record.sampler,
        cohort_size=record.cohort_size,
        seed=record.seed,
        settings=settings_in_words(record.config),
        experts=tuple((place, expert_in_words(kind, config)) for place, kind, config in record.experts),
        rounds=len(seen),
        open_rounds=open_rounds,
        oldest_open=oldest_open,
        draws=draws,
        replies=replies,
        failures=failures,
        present=present,
        everybody=everybody,
        coverage=None if not everybody else len(clients) / everybody,
        effective_clients=effective[-1] if effective else 0.0,
        begun_at=record.begun_at,
        continues=record.continues,
        first_draw=first,
        last_event=last,
        clients=tuple(sorted(clients.values(), key=lambda known: (-known.draws, known.client))),
        suspicion=suspicion_of(record),
        seen_by_round=np.array(seen, dtype=float),
        effective_by_round=np.array(effective, dtype=float),
        replies_by_round=np.array(replied, dtype=float),
        norms_by_round=np.array(medians, dtype=float),
    )


def _met(clients: dict[int, ClientSummary], cohort: Cohort) -> list[ClientSummary]:
    found = []
    for client, probability in zip(cohort.clients.tolist(), cohort.probabilities.tolist(), strict=True):
        known = clients.setdefault(client, ClientSummary(client))
        known.probability = probability
        found.append(known)
    return found


def client_row(known: ClientSummary) -> tuple[str, str, str, str, str]:
    """A client, and why it is drawn as it is."""
    silent = "never replied" if known.failures else "none yet"
    norms = " ".join(f"{norm:.3g}" for norm in reversed(known.norms)) or silent
    name = f"{known.client} (left)" if known.left else str(known.client)
    return name, str(known.draws), str(known.failures), f"{known.probability:.3g}", norms


def median_row(summary: RunSummary) -> tuple[str, str, str, str, str]:
    """The medians of all clients drawn, and of their last norms: what the others are to be compared with."""
    clients = summary.clients
    newest = [known.norms[-1] for known in clients if known.norms]
    return (
        "median",
        f"{np.median([known.draws for known in clients]):g}",
        f"{np.median([known.failures for known in clients]):g}",
        f"{np.median([known.probability for known in clients]):.3g}",
        f"{np.median(newest):.3g}" if newest else "none",
    )


def suspect_rows(summary: RunSummary, most: int) -> list[tuple[str, str, str, str, str]]:
    """The clients that hit the clip, the most frequent first."""
    known = {client.client: client for client in summary.clients}
    return [
        _suspect_row(suspect, known.get(suspect.client, ClientSummary(suspect.client)))
        for suspect in summary.suspicion.suspects[:most]
    ]


def _suspect_row(suspect: Suspect, known: ClientSummary) -> tuple[str, str, str, str, str]:
    name, draws, _, _, norms = client_row(known)
    return name, str(suspect.hits), f"{suspect.largest_excess:.3g}", draws, norms


def figures(summary: RunSummary, now: float | None = None) -> list[tuple[str, str]]:
    """A run in figures, by name; ``now`` tells how old the open cohorts are."""
    asked = summary.replies + summary.failures
    rounds = f"{summary.rounds}, {summary.open_rounds} of them await feedback"
    if summary.oldest_open is not None:
        age = "" if now is None else f", {duration(now - summary.oldest_open)} ago"
        rounds += f", the oldest drawn {moment(summary.oldest_open)}{age}"
    if not summary.rounds:
        rounds = "none drawn yet"
    share = f"{summary.failures / asked:.1%}" if asked else ""
    failed = f"{summary.failures} of {asked} requests to a client ({share})" if asked else "none asked yet"
    present, coverage, of_all = _crowd(summary)
    lasted = duration(summary.last_event - summary.begun_at)
    return [
        ("sampler", summary.sampler),
        ("cohort size", "unknown" if summary.cohort_size is None else str(summary.cohort_size)),
        ("seed", "unknown" if summary.seed is None else str(summary.seed)),
        ("settings", summary.settings),
        *((f"expert {place}", expert) for place, expert in summary.experts),
        ("begun", moment(summary.begun_at) + _continued(summary)),
        ("last row", f"{moment(summary.last_event)}, {lasted} after the first"),
        ("rounds", rounds),
        ("clients", present),
        ("coverage", coverage),
        ("effective clients", f"{summary.effective_clients:.1f}{of_all}"),
        ("failures", failed),
        ("suspects", summary.suspicion.in_words()),
    ]


def _continued(summary: RunSummary) -> str:
    if summary.continues is None:
        return ""
    return f", from a loaded state, at round {summary.continues}; suspects count from its own start"


def _crowd(summary: RunSummary) -> tuple[str, str, str]:
    """Who can be drawn, how many were, and out of how many: those there now are not all that ever were."""
    drawn = len(summary.clients)
    if summary.present is None or summary.everybody is None or summary.coverage is None:
        return "unknown", f"unknown; {drawn} clients were drawn at least once", ""
    gone, whom = summary.everybody - summary.present, f"{summary.everybody} clients"
    present = str(summary.present)
    if gone:
        present += f" now; {summary.everybody} ever, of whom {gone} left"
        whom = f"the {summary.everybody} clients ever there"
    return present, f"{summary.coverage:.1%}: {drawn} of {whom} were drawn at least once", f" of {whom}"
