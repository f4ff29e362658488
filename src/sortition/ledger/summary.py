"""What a run amounts to: figures and tables in words, and the whole run as CSV files."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sortition.core.accounting import gaussian_epsilon, gaussian_mu
from sortition.core.designs import INCLUSION_DESIGNS
from sortition.core.errors import ConfigurationError, LedgerError, StateError
from sortition.core.guard_settings import Guard, Suspect, hits_in, suspects_of
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import printable
from sortition.ledger.files import belongs_to, private
from sortition.ledger.gain import Gain, PresentClients, gain_of
from sortition.ledger.notes import NOTED, Noted
from sortition.ledger.record import Membership, RunRecord, membership_of
from sortition.ledger.settings_in_words import fields_of
from sortition.ledger.store import counted
from sortition.ledger.tally import ClientSummary, ClientTable, Tally

CLIENT_COLUMNS = ("client", "draws", "no reply", "last probability", "last norms")
SILENT_COLUMNS = ("client", "draws", "replies", "no reply", "last reply in round")
SUSPECT_COLUMNS = ("client", "clipped reports", "times the bound", "draws", "last norms")
NAMED_SUSPECTS = 3
"""How many suspects the line of figures names, each with its number of clipped reports."""
ROUNDS = ("round", "drawn_at", "observed_at", "clients", "draws", "replies", "failures", "available")
DRAWS = ("round", "client", "count", "probability", "weight", "replied", "norm")
MEMBERS = ("before_round", "at", "client", "change")
NAMES = ("client", "name")
LOGGED_NUMBERS = ("round", "name", "value")
NAMED_NUMBERS = 8
"""How many of the logged numbers the line of figures shows."""
TROUBLES = {
    "train/sampling-refused": "replies refused",
    "train/sampling-clipped": "updates made shorter",
    "train/sampling-resting-clients": "rounds of rest for silent clients",
}
"""Logged names of a Flower run, in rounds where they are above 0, and what their sums count."""
_SHARED = ("num_clients", "cohort_size", "client_weights", "design", "guard", "privacy")
"""Settings that an expert shares with its portfolio, or does not use in it."""
DELTA = 1e-5
"""At which it is said what a private run has spent."""
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


# A run in figures -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The suspects of a run, the most frequent first, or why they are not known."""

    suspects: tuple[Suspect, ...] = ()
    unknown: str | None = None
    norm_bound: str | None = None
    """The bound at which privacy clips the norms before the guard sees them."""

    def in_words(self, names: Mapping[int, str] | None = None) -> str:
        """One line; clients that have one are called by their name."""
        if self.unknown is not None:
            return self.unknown
        blind = ""
        if self.norm_bound is not None:
            blind = (
                f"; privacy clips norms at {self.norm_bound} before the guard sees them, "
                "so it cannot find liars"
            )
        if not self.suspects:
            return "none: no report was above the guard's clip" if not blind else f"not known{blind}"
        reports = sum(suspect.hits for suspect in self.suspects)
        clients = [
            f"{(names or {}).get(suspect.client, suspect.client)} ({suspect.hits})"
            for suspect in self.suspects[:NAMED_SUSPECTS]
        ]
        named = ", ".join([*clients, *(["..."] if len(self.suspects) > NAMED_SUSPECTS else [])])
        return f"{len(self.suspects)}, with {reports} reports above the guard's clip: {named}{blind}"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in figures."""

    sampler: str
    cohort_size: int | None
    seed: int | None
    private: bool
    """Whether norms and seed must not be shown."""
    settings: str
    """The other settings of the sampler, in words."""
    words: Mapping[str, str]
    """All settings by name, each in words, with the seed if it may be shown, and the experts."""
    experts: tuple[tuple[str, str], ...]
    """The place of each expert of a portfolio and, in words, what it is."""
    rounds: int
    open_rounds: int
    oldest_open: float | None
    """When the oldest cohort that awaits feedback was drawn."""
    draws: int
    replies: int
    failures: int
    present: int | None
    """How many clients can be drawn at the end, if the record says so."""
    everybody: int | None
    """How many clients there ever were, if the record says so."""
    coverage: float | None
    """The share of all clients there ever were that was drawn at least once."""
    effective_clients: float
    r"""How many clients drawn equally often would be as diverse: :math:`(\sum n_m)^2 / \sum n_m^2`."""
    begun_at: float
    continues: int | None
    """The next round of the state that was loaded at the start."""
    first_draw: float | None
    last_event: float
    clients: ClientTable
    changes: tuple[Membership, ...]
    """Who joined and left, and when."""
    suspicion: Suspicion
    """The clients whose norms were clipped by the sampler's guard."""
    round_indices: IntArray
    """The number of each round, in the order of the draws, which is that of the arrays that follow."""
    seen_by_round: FloatArray
    """After each round, the number of clients drawn so far."""
    effective_by_round: FloatArray
    """After each round, the effective number of clients so far."""
    replies_by_round: FloatArray
    """The share of the cohort that replied; nan for open rounds."""
    norms_by_round: FloatArray
    """The median of the norms; nan where there are none, or where they must not be shown."""
    logged: Mapping[str, Mapping[int, float]]
    """What was logged, by name and round."""
    gain: Gain
    """Over uniform sampling."""
    privacy_spent: str
    """In a private run, what the replies have cost, in words; else empty."""


def summarise(record: RunRecord) -> RunSummary:
    """Read the whole record, once."""
    present, changes, noted = PresentClients(record), [], Noted()
    inclusion = str(record.config.get("design")) in INCLUSION_DESIGNS
    suspicion = suspicion_of(record)
    lied = np.array([suspect.client for suspect in suspicion.suspects], dtype=np.int64)
    tally = Tally(present, record.cohort_size, inclusion=inclusion, suspects=lied if len(lied) else None)
    first: float | None = None
    last, next_round = record.begun_at, record.first_round
    for event in record.events():
        last = max(last, event.time)
        if event.kind == "drawn":
            first = event.time if first is None else first
            next_round = event.round_index + 1
            tally.add_cohort(event.round_index, event.payload, event.time)
        elif event.kind == "observed":
            if event.round_index not in tally.open:  # drawn before the state was loaded: the row has it
                tally.add_cohort(event.round_index, event.payload, event.time)
            tally.add_feedback(event.round_index, event.payload)
        elif change := membership_of(event, next_round):
            changes.append(change)
            present.change(change)
        elif event.kind == NOTED:
            noted.add(event)
    everybody, left = record.initial_clients, set(record.initially_left.tolist())
    for change in changes:
        if change.joined is not None and everybody is not None:
            everybody += len(change.joined)
        if change.left is not None:
            left.update(change.left.tolist())
    seen, effective, replied, medians = tally.by_round()
    clients = tally.clients
    clients.left, clients.private = left, record.private
    clients.names = {client: printable(name) for client, name in noted.client_names.items()}
    clients.sort()
    return RunSummary(
        sampler=record.sampler,
        cohort_size=record.cohort_size,
        seed=None if record.private else record.seed,
        private=record.private,
        settings=settings_in_words(record.config),
        words=_words(record),
        experts=tuple((place, expert_in_words(kind, config)) for place, kind, config in record.experts),
        rounds=len(tally.rounds),
        open_rounds=len(tally.open),
        oldest_open=next((drawn_at for _, _, drawn_at, *_ in tally.open.values()), None),
        draws=tally.draws,
        replies=tally.replies,
        failures=tally.failures,
        present=None if everybody is None else everybody - len(left),
        everybody=everybody,
        coverage=None if not everybody else len(clients) / everybody,
        effective_clients=float(effective[-1]) if len(effective) else 0.0,
        begun_at=record.begun_at,
        continues=record.continues,
        first_draw=first,
        last_event=last,
        clients=clients,
        changes=tuple(changes),
        suspicion=suspicion,
        round_indices=np.array(tally.rounds, dtype=np.int64),
        seen_by_round=seen.astype(float),
        effective_by_round=effective,
        replies_by_round=replied,
        norms_by_round=np.full(len(medians), np.nan) if record.private else medians,
        logged=noted.logged,
        gain=_gain(record, tally, present, lied),
        privacy_spent=_privacy_spent(record, clients) if record.private else "",
    )


def _gain(record: RunRecord, tally: Tally, present: PresentClients, suspects: IntArray) -> Gain:
    if record.private:
        return Gain(unknown="not shown")
    if present.unknown or record.cohort_size is None:
        return Gain(unknown=present.unknown or "not known: the record does not say the cohort size")
    found = gain_of(*tally.variances(), record.cohort_size)
    without = ""
    if len(suspects):
        draws = sum(tally.clients.of(client).draws for client in suspects.tolist())
        without = f"the {counted(len(suspects), 'suspect')}, who took {draws} of {tally.draws} draws"
    return replace(found, residuals=record.has_memory, without=without)


def _privacy_spent(record: RunRecord, clients: ClientTable) -> str:
    """What the replies of the client that replied most have cost, by the noise that the settings name."""
    if record.continues is not None:
        return "not known: the loaded state had replies of its own; its sampler's privacy_spent counts all"
    try:
        sigma = float(fields_of(record.config.get("privacy"))["noise_multiplier"])
        most = int(clients.replies.max(initial=0))
        epsilon = gaussian_epsilon(gaussian_mu(sigma, most), DELTA)
    except (KeyError, ValueError, ConfigurationError):
        return "not known: the settings do not say the noise"
    return f"epsilon {epsilon:.3g} at delta {DELTA:g}, for the norms of the client with most replies ({most})"


def suspicion_of(record: RunRecord) -> Suspicion:
    """The guard's own list, out of the snapshot of the last row, or by replay from the newest one.

    The clip is not recorded; it follows from the rows. If the library cannot build the sampler, or the
    sampler of this version draws other cohorts, the suspects are not known.
    """
    if record.guard is None:
        return Suspicion(unknown="not known: the sampler is not one of the library's")
    if record.guard == "none":
        return Suspicion(unknown="not looked for: the sampler has no guard")
    if not record.rebuildable:
        return Suspicion(unknown="not known: only the program that made the sampler can build it")
    try:
        suspects = suspects_of(hits_in(record.last_state()))
    except (LedgerError, StateError) as error:
        return Suspicion(unknown=f"not known: {error}")
    clip = re.search(r"norm_bound=([^,)]+)", str(record.config.get("privacy")))
    return Suspicion(tuple(suspects), norm_bound=clip and clip[1])


# Figures and tables in words --------------------------------------------------------------------------


def client_row(known: ClientSummary) -> tuple[str, str, str, str, str]:
    """The row of a client: how often it was drawn, and what its probability follows from."""
    silent = "never replied" if known.failures else "none yet"
    norms = "not shown" if known.norms is None else " ".join(f"{norm:.3g}" for norm in known.norms) or silent
    name = (str(known.client) if known.name is None else known.name) + (" (left)" if known.left else "")
    return name, str(known.draws), str(known.failures), f"{known.probability:.3g}", norms


def median_row(summary: RunSummary) -> tuple[str, str, str, str, str]:
    """The medians over all drawn clients, to compare a client with."""
    clients = summary.clients
    newest = clients.norms[~np.isnan(clients.norms[:, 0]), 0]
    norm = f"{np.median(newest):.3g}" if len(newest) else "none"
    return (
        "median",
        f"{np.median(clients.draws):g}",
        f"{np.median(clients.failures):g}",
        f"{np.median(clients.probabilities):.3g}",
        "not shown" if summary.private else norm,
    )


def suspect_rows(summary: RunSummary, most: int) -> list[tuple[str, str, str, str, str]]:
    """The clients whose norms were clipped, the most frequent first."""
    rows = []
    for suspect in summary.suspicion.suspects[:most]:
        name, draws, _, _, norms = client_row(summary.clients.of(suspect.client))
        rows.append((name, str(suspect.hits), f"{suspect.largest_excess:.3g}", draws, norms))
    return rows


def silent_rows(clients: Iterable[ClientSummary]) -> list[tuple[str, str, str, str, str]]:
    """Rows of clients that did not reply."""
    return [
        (
            client_row(known)[0],
            str(known.draws),
            str(known.replies),
            str(known.failures),
            "never" if known.last_reply is None else str(known.last_reply),
        )
        for known in clients
    ]


def figures(summary: RunSummary, now: float | None = None) -> list[tuple[str, str]]:
    """A run in figures, by name; with ``now``, also how old the oldest open cohort is."""
    asked = summary.replies + summary.failures
    rounds = f"{summary.rounds}, {summary.open_rounds} of them await feedback"
    if summary.oldest_open is not None:
        age = "" if now is None else f", {duration(now - summary.oldest_open)} ago"
        rounds += f", the oldest drawn {moment(summary.oldest_open)}{age}"
    if not summary.rounds:
        rounds = "none drawn yet"
    share = f"{summary.failures / asked:.1%}" if asked else ""
    failed = f"{summary.failures} of {asked} requests to a client ({share})" if asked else "none asked yet"
    present, coverage, of_all = _clients_in_words(summary)
    lasted = duration(summary.last_event - summary.begun_at)
    found = [
        ("sampler", summary.sampler),
        ("cohort size", "unknown" if summary.cohort_size is None else str(summary.cohort_size)),
        (
            "seed",
            "not shown" if summary.private else "unknown" if summary.seed is None else str(summary.seed),
        ),
        ("settings", summary.settings),
        *((f"expert {place}", expert) for place, expert in summary.experts),
        ("begun", moment(summary.begun_at) + _continued(summary)),
        ("last row", f"{moment(summary.last_event)}, {lasted} after the first"),
        ("rounds", rounds),
        ("clients", present),
        ("coverage", coverage),
        ("effective clients", f"{summary.effective_clients:.1f}{of_all}"),
        ("failures", failed),
        *([("privacy spent", summary.privacy_spent)] if summary.privacy_spent else []),
        ("gain", summary.gain.in_words()),
        ("suspects", summary.suspicion.in_words(summary.clients.names)),
        *([("troubles", troubles)] if (troubles := _troubles_in_words(summary.logged)) else []),
        *([("last logged", logged)] if (logged := _logged_in_words(summary.logged)) else []),
    ]
    return [(name, printable(value)) for name, value in found]


def _logged_in_words(logged: Mapping[str, Mapping[int, float]]) -> str:
    """The last number of each name, and its round."""
    words, numbers = [], {name: found for name, found in logged.items() if name not in TROUBLES}
    for name, by_round in list(numbers.items())[:NAMED_NUMBERS]:
        last = max(by_round)
        words.append(f"{name} {by_round[last]:.4g} (round {last})")
    return ", ".join([*words, *(["..."] if len(numbers) > NAMED_NUMBERS else [])])


def _troubles_in_words(logged: Mapping[str, Mapping[int, float]]) -> str:
    """How many replies of a Flower run were refused or changed, and how long silent clients rested."""
    return ", ".join(
        f"{sum(logged[name].values()):.0f} {what}" for name, what in TROUBLES.items() if name in logged
    )


def _continued(summary: RunSummary) -> str:
    if summary.continues is None:
        return ""
    return f", from a loaded state, at round {summary.continues}; suspects count from its own start"


def _clients_in_words(summary: RunSummary) -> tuple[str, str, str]:
    """How many clients can be drawn, how many were, and out of how many: some may have left."""
    drawn = len(summary.clients)
    if summary.present is None or summary.everybody is None or summary.coverage is None:
        return "unknown", f"unknown; {drawn} clients were drawn at least once", ""
    gone, total = summary.everybody - summary.present, f"{summary.everybody} clients"
    present = str(summary.present)
    if gone:
        present += f" now; {summary.everybody} ever, of which {gone} left"
        total = f"the {summary.everybody} clients ever there"
    return present, f"{summary.coverage:.1%}: {drawn} of {total} were drawn at least once", f" of {total}"


def moment(seconds: float, *, iso: bool = False) -> str:
    """A time to the second, or in ISO form to the millisecond; "unknown" for one that no calendar has.

    >>> moment(0.0), moment(1e300), moment(0.0, iso=True)
    ('1970-01-01 00:00:00 UTC', 'unknown', '1970-01-01T00:00:00.000+00:00')
    """
    try:
        found = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return "unknown"
    return found.isoformat(timespec="milliseconds") if iso else found.strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float) -> str:
    """A duration in its two largest units.

    >>> duration(93784.0)
    '1 d 2 h'
    """
    if not math.isfinite(seconds):
        return "unknown"
    left, parts = max(0, round(seconds)), []
    for unit, size in _UNITS:
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts[:2]) or "0 s"


def settings_in_words(config: Mapping[str, Any]) -> str:
    """The settings except the sizes; of a guard, the fields that are not at their defaults.

    >>> settings_in_words({"num_clients": 9, "cohort_size": 2, "design": "independent", "privacy": "none"})
    'design independent, privacy none'
    """
    shown = [name for name in config if name not in ("num_clients", "cohort_size")]
    return ", ".join(f"{name} {_in_words(name, config[name])}" for name in shown) or "unknown"


def _in_words(name: str, value: Any) -> str:
    if name == "guard" and isinstance(value, str) and value != "none":
        defaults = {field.name: repr(field.default) for field in fields(Guard)}
        own = [
            f"{field}={set_to}" for field, set_to in fields_of(value).items() if defaults.get(field) != set_to
        ]
        return f"Guard({', '.join(own)})"
    return str(value)


def _words(record: RunRecord) -> dict[str, str]:
    words = {name: printable(_in_words(name, value)) for name, value in record.config.items()}
    if record.seed is not None and not record.private:
        words["seed"] = str(record.seed)
    if record.experts:
        words["experts"] = printable(
            "; ".join(expert_in_words(kind, config) for _, kind, config in record.experts)
        )
    return words


def expert_in_words(kind: str, config: Mapping[str, Any]) -> str:
    """An expert of a portfolio, and its own settings.

    >>> expert_in_words("AvareSampler", {"num_clients": 9, "guard": "none", "floor_decay": 0.9})
    'AvareSampler: floor_decay 0.9'
    """
    own = {name: value for name, value in config.items() if name not in _SHARED}
    return f"{kind}: {settings_in_words(own)}" if own else kind


# CSV files --------------------------------------------------------------------------------------------


def export_csv(record: RunRecord, directory: str | os.PathLike[str]) -> list[Path]:
    """Write ``rounds.csv``, ``draws.csv``, ``members.csv``, ``logged.csv``, ``names.csv``.

    The last two only if there is something for them. Numbers are exact, times are UTC.
    Rounds count from 0; -1 in ``logged.csv`` is before the first.

    ``draws.csv`` has a row for each client of each cohort. A norm is empty where the client did not reply
    (``replied`` 0), where the round is open (``replied`` empty), and in a private run.
    """
    target = Path(directory)
    if belongs_to(record.path, target):
        raise LedgerError(f"{target} is one of the files of the run; choose another directory")
    try:
        names, logged = record.client_names, _logged(record)  # refuse a damaged run first
        target.mkdir(parents=True, exist_ok=True)
        return [
            _write(record, target / "rounds.csv", ROUNDS, _rounds(record)),
            _write(record, target / "draws.csv", DRAWS, _draws(record)),
            _write(record, target / "members.csv", MEMBERS, _members(record)),
            *([_write(record, target / "logged.csv", LOGGED_NUMBERS, logged)] if logged else []),
            *([_write(record, target / "names.csv", NAMES, sorted(names.items()))] if names else []),
        ]
    except FileExistsError:
        raise LedgerError(f"{target} must be a directory, got a file") from None
    except OSError as error:
        raise LedgerError(f"{target} cannot be written to: {error.strerror}") from error


def _write(record: RunRecord, path: Path, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Path:
    with whole_file(path, record.path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    return path


@contextmanager
def whole_file(path: Path, *runs: Path) -> Iterator[TextIO]:
    """A file that replaces ``path`` once it is whole, with the permissions that all the runs have.

    Without runs it has the usual ones. It is a LedgerError if ``path`` is one of their files.
    """
    if any(belongs_to(run, path) for run in runs):
        raise LedgerError(f"{path} is one of the files of the run; choose another file")
    if path.exists() and not path.is_file():  # a pipe or a terminal cannot be replaced
        with open(path, "w", newline="", encoding="utf-8") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.unfinished")
    with open(unfinished, "x", newline="", encoding="utf-8", opener=private if runs else None) as file:
        try:
            yield file
            file.flush()
            if runs:
                mode = 0o666
                for run in runs:
                    mode &= run.stat().st_mode
                os.fchmod(file.fileno(), mode)
            os.replace(unfinished, target)
        finally:
            unfinished.unlink(missing_ok=True)


def _rounds(record: RunRecord) -> Iterator[tuple[Any, ...]]:
    for round_ in record.rounds():
        cohort, norms = round_.cohort, round_.norms
        replies = "" if norms is None else sum(not math.isnan(norm) for norm in norms.tolist())
        yield (
            cohort.round_index,
            _utc(round_.drawn_at),
            _utc(round_.observed_at),
            len(cohort),
            int(cohort.counts.sum()),
            replies,
            "" if norms is None else len(cohort) - int(replies),
            "" if cohort.available is None else len(cohort.available),
        )


def _draws(record: RunRecord) -> Iterator[tuple[Any, ...]]:
    for round_ in record.rounds():
        cohort = round_.cohort
        norms = [None] * len(cohort) if round_.norms is None else round_.norms.tolist()
        for client, count, probability, weight, norm in zip(
            cohort.clients.tolist(),
            cohort.counts.tolist(),
            cohort.probabilities.tolist(),
            cohort.weights.tolist(),
            norms,
            strict=True,
        ):
            heard = "" if norm is None else int(not math.isnan(norm))
            shown = repr(norm) if heard == 1 and not record.private else ""
            yield (cohort.round_index, client, count, repr(probability), repr(weight), heard, shown)


def _members(record: RunRecord) -> Iterator[tuple[Any, ...]]:
    for change in record.memberships():
        for clients, what in ((change.joined, "joined"), (change.left, "left")):
            for client in [] if clients is None else clients.tolist():
                yield (change.round_index, _utc(change.time), client, what)


def _logged(record: RunRecord) -> list[tuple[int, str, str]]:
    """Round by round, in the order in which the names were first logged."""
    rows = [
        (round_index, name, repr(number))
        for name, by_round in record.logged().items()
        for round_index, number in by_round.items()
    ]
    return sorted(rows, key=lambda row: row[0])


def _utc(seconds: float | None) -> str:
    return "" if seconds is None else moment(seconds, iso=True)
