"""From the rows back to the sampler: the newest good snapshot, and every row after it once more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError, LedgerError, SortitionError
from sortition.core.protocols import Sampler
from sortition.ledger.codec import available_of, cohort_of, same_cohort
from sortition.ledger.files import SealedFiles
from sortition.ledger.settings import differing
from sortition.ledger.store import Event, Store

MakeSampler: TypeAlias = Callable[[], Sampler]
SNAPSHOT = "snapshot"
_METHODS = ("draw", "observe", "probabilities", "state_dict", "load_state_dict")


@dataclass
class Replayed:
    """A sampler, and where its run stands."""

    sampler: Any
    open: dict[int, Cohort] = field(default_factory=dict)
    """The cohorts that await feedback, by round, oldest first."""
    round_index: int = 0
    """The round of the next cohort."""
    last_observed: int | None = None
    """The round that had feedback last; not the newest one, where cohorts are answered out of order."""

    def apply(self, event: Event) -> None:
        """Do what the row says was done."""
        values = event.values()
        try:
            if event.kind == "drawn":
                self._draw(event, values)
            elif event.kind == "observed":
                self.last_observed = event.round_index
                cohort = self.open.pop(event.round_index, None)
                if cohort is None:  # drawn before the state was loaded
                    cohort = cohort_of(event.round_index, values)
                self.sampler.observe(cohort, values["norms"])
            elif event.kind == "joined":
                self.sampler.add_clients(values["clients"], client_weights=values["client_weights"])
            elif event.kind == "left":
                self.sampler.remove_clients(values["clients"])
            elif event.kind == "calibrated":
                self.sampler.calibrate(values["norms"], values["clients"])
            elif event.kind == "loaded":
                self.sampler.load_state_dict(within(values, "state."))
                self.round_index = values["round_index"]
            else:
                raise LedgerError(f"row {event.number} must be of a known kind, got {event.kind!r}")
        except LedgerError:
            raise
        except (SortitionError, KeyError, AttributeError) as error:
            raise LedgerError(f"row {event.number} ({event.kind}) must be repeatable, got {error}") from error

    def _draw(self, event: Event, values: Mapping[str, Any]) -> None:
        recorded = cohort_of(event.round_index, values)
        drawn = self.sampler.draw(available_of(values))
        if not same_cohort(drawn, recorded):
            raise LedgerError(
                f"round {event.round_index} must be drawn again as it was, but the sampler draws another "
                "cohort: it, its library or its processor is not the one of the record"
            )
        self.open[event.round_index] = recorded
        self.round_index = event.round_index + 1


def built(make_sampler: MakeSampler) -> Any:
    """What ``make_sampler`` builds, if it is a sampler."""
    if not callable(make_sampler):
        raise ConfigurationError(
            f"make_sampler must be a function that builds a sampler, got {make_sampler!r}"
        )
    sampler: Any = make_sampler()
    missing = [name for name in _METHODS if not callable(getattr(sampler, name, None))]
    if missing:
        raise ConfigurationError(
            f"make_sampler must build a sampler, got {sampler!r}, which has no {missing[0]}()"
        )
    return sampler


def begin(make_sampler: MakeSampler, first: Event) -> Replayed:
    """The sampler at the start of the run: built anew, with the state that it had then."""
    if first.kind != "begun":
        raise LedgerError(f"row 0 must begin the run, got {first.kind!r}")
    sampler = built(make_sampler)
    try:
        sampler.load_state_dict(within(first.values(), "state."))
    except SortitionError as error:
        differs = differing(within(first.values(), "state."), sampler.state_dict()) or str(error)
        raise LedgerError(
            f"make_sampler must build the sampler that the run was begun with: {differs}"
        ) from error
    return Replayed(sampler)


def rebuild(
    make_sampler: MakeSampler, store: Store, files: SealedFiles, *, reading: bool = False
) -> tuple[Replayed, int, int]:
    """The sampler as the last row left it, and the row and the round of the snapshot that it began from.

    Whoever is only ``reading`` leaves aside the snapshots that a writer took after ``store`` was opened.
    """
    first = store.event(0)
    snapshots = [number for number in files.numbers(SNAPSHOT) if not reading or number <= store.last]
    for number in reversed(snapshots):
        try:
            snapshot = files.read(SNAPSHOT, number)
        except (LedgerError, OSError):
            continue  # verify_run will tell; an older one, or the start, serves as well
        if number > store.last:
            raise store.damage(
                f"{store.path} must have the {number + 1} rows that a snapshot knows of, "
                f"got {store.last + 1}: rows are missing"
            )
        if snapshot.get("checksum") != store.checksum_of(number).hex():
            raise store.damage(
                f"{store.path} must be the database of its snapshots, but row {number} differs"
            )
        replayed = begin(make_sampler, first)
        restore(replayed, snapshot, store)
        break
    else:
        replayed, number = begin(make_sampler, first), 0
    round_index = replayed.round_index
    for event in store.events(after=number):
        replayed.apply(event)
    return replayed, number, round_index


def snapshot_values(replayed: Replayed, checksum: bytes) -> dict[str, Any]:
    """All that a continued run needs after the row with that checksum."""
    return {
        "checksum": checksum.hex(),
        "round_index": replayed.round_index,
        "last_observed": replayed.last_observed,
        "open": ",".join(map(str, replayed.open)),
        **{f"state.{name}": value for name, value in replayed.sampler.state_dict().items()},
    }


def restore(replayed: Replayed, snapshot: Mapping[str, Any], store: Store) -> None:
    """Put ``replayed`` where the snapshot was taken."""
    try:
        replayed.sampler.load_state_dict(within(snapshot, "state."))
    except SortitionError as error:
        raise LedgerError(f"a snapshot must suit the sampler, got {error}") from error
    replayed.round_index = snapshot["round_index"]
    replayed.last_observed = snapshot["last_observed"]
    for round_index in map(int, filter(None, snapshot["open"].split(","))):
        event = store.find("drawn", round_index)
        if event is None:
            raise store.damage(f"{store.path} must have the draw of round {round_index}: rows are missing")
        replayed.open[round_index] = cohort_of(round_index, event.values())


def within(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The entries whose names start with ``prefix``, without it."""
    return {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}
