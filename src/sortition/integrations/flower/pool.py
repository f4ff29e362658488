"""The clients of a federation: their ids, their data sizes, and the sampler that draws among them."""

from __future__ import annotations

import copy
import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError, LedgerError, SortitionError, StateError
from sortition.core.protocols import Sampler, check_available
from sortition.core.state import array, part, scalar, text
from sortition.core.types import BoolArray, FloatArray, IntArray
from sortition.core.validation import whole_number
from sortition.integrations.flower.identities import natural_order, some
from sortition.integrations.flower.silence import LEAST_SILENT, Silence
from sortition.integrations.flower.sizes import DataSizes
from sortition.ledger import RecordedSampler, open_run, read_run
from sortition.ledger.files import run_file, side_directory
from sortition.ledger.notes import logged_number
from sortition.ledger.store import check_header
from sortition.samplers.empirical_bayes import EmpiricalBayesSampler, default_sampler
from sortition.samplers.static import ProportionalSampler

log = logging.getLogger("flwr.sortition")

SAMPLER = "sampler."
"""Prefix of the sampler's own entries in the state."""

DEFAULT_KIND = EmpiricalBayesSampler.__name__

BY_SIZE = (
    "To draw by size, give cohort_size instead: the default sampler begins with the sizes if all are known"
)

STATE, CLIENTS = "flower", "flower_clients"
"""Attachments in the ledger: the whole state, written as a round ends, and its part about the clients,
written when new ones join."""


@dataclass(frozen=True)
class DrawnCohort:
    """A cohort and what was known when it was drawn."""

    cohort: Cohort
    names: tuple[str, ...]
    """The identities of ``cohort.clients``, in the same order."""
    told_sizes: FloatArray
    """Sizes of ``cohort.clients`` that no reply changes; nan if the client is to report its own."""
    known_sizes: FloatArray
    """Sizes of ``cohort.clients`` that were known, given or reported; nan for the others."""
    available: IntArray
    """The clients that could be drawn, in ascending order."""
    probabilities: FloatArray
    """The probabilities of ``available``, which sum to one."""
    total_size: float
    """The examples of all available clients, known or estimated; nan if no size is known yet."""
    sizes_known: bool
    """Whether the sizes of all available clients are known."""
    resting: int = 0
    """How many clients online are left out, since they did not reply several times in a row."""
    is_asked_again: bool = False
    """Whether it was drawn before a crash."""

    def counted(self, sizes: FloatArray) -> FloatArray:
        """What replies with these sizes count for in this round, aligned with the cohort.

        A client was drawn for the size that was known of it. If it now reports another one, that counts from
        the next round on, and the sampler learns of it before.
        """
        return np.where(np.isnan(sizes) | np.isnan(self.known_sizes), sizes, self.known_sizes)


def largest_total_weight(cohort_size: int) -> float:
    r"""How much the replies of a round may count, relative to all available clients together.

    The sum of :math:`\lambda_m \mathrm{weight}_m` has mean 1. If the default sampler knows the sizes, no
    weight is above :math:`1 / (0.12 \cdot 0.9 \, K \lambda_m)`, so that the variance of the sum is at most
    :math:`(1 / 0.108 - 1) / K`. The bound is three of these standard deviations above the mean.

    >>> [round(largest_total_weight(cohort_size), 1) for cohort_size in (1, 3, 10, 100)]
    [10.0, 6.2, 3.8, 1.9]
    """
    return 1.0 + 9.0 / float(np.sqrt(cohort_size))


@dataclass(frozen=True)
class CountedReplies:
    """How much the replies of a round count together."""

    known_sizes: DataSizes
    """What is known of the data sizes after these replies."""
    sizes: FloatArray
    """What each client counts for from now on, aligned with the cohort; nan means no reply."""
    total_size: float
    """The examples of all available clients, known or estimated."""
    factor: float
    """What the cohort weights are multiplied by; 1 unless sizes are unknown or the weights are too large."""


@dataclass(frozen=True)
class WeighedReplies:
    """What the replies of a round count. Arrays are aligned with ``replied`` unless they say otherwise."""

    replied: Cohort
    probabilities: FloatArray
    """The probabilities that the clients were drawn with."""
    shares: FloatArray
    """Client weights (lambda): shares in all examples that the step is a mean of."""
    feedback: FloatArray
    """(share times norm) squared."""
    step_scale: float
    """Factor that turns the sum of ``size * weight * update`` into the step: one over the total size."""
    total_weight: float
    """The sum of share times weight, as it is in the step."""
    sampler_norms: FloatArray
    """The norms that the sampler is to observe, aligned with the whole cohort; nan means no reply."""
    known_sizes: DataSizes
    """What is known of the data sizes after these replies."""
    num_replied: int
    """How many of all clients have replied at least once by now."""


class ClientPool:
    """The clients seen so far and the sampler that draws among them.

    Clients have identities, which are strings. In the sampler they are numbered in the order in which they
    joined.

    A sampler multiplies each norm by its own client weight, and these weights are set when it is built,
    before any client has reported its size. So it observes norms that are multiplied by ``share / own
    weight``. Its feedback is then (share times norm) squared, whatever its own weights are. They are uniform
    for a sampler that was given. The default sampler starts from the data sizes if all are known by then.

    With a ledger, the sampler is wrapped in the ledger's ``RecordedSampler`` for the time of a run.
    """

    def __init__(
        self,
        sampler: Sampler | None,
        cohort_size: int | None,
        num_examples: Mapping[str, float] | None,
        seed: int,
        ledger: str | os.PathLike[str] | None,
        max_examples: float | None = None,
    ) -> None:
        if (sampler is None) == (cohort_size is None):
            raise ConfigurationError(
                "give either cohort_size, for the default sampler, or a sampler of your own, got "
                + ("neither" if sampler is None else "both")
            )
        if not (sampler is None or isinstance(sampler, Sampler)):
            raise ConfigurationError(f"sampler must be a sampler of sortition or alike, got {sampler!r}")
        own_weights = getattr(sampler, "client_weights", None)
        if own_weights is not None and np.ptp(own_weights()) > 0.0:
            raise ConfigurationError(
                "sampler must be built without client_weights: clients count by the sizes that they report "
                f"or that num_examples gives. {BY_SIZE}"
            )
        if isinstance(sampler, ProportionalSampler):
            raise ConfigurationError(
                "sampler must not be a ProportionalSampler: without client_weights, which can't be given "
                f"here, it draws uniformly, as UniformSampler does. {BY_SIZE}"
            )
        self._cohort_size = 0 if cohort_size is None else whole_number("cohort_size", cohort_size, least=1)
        self._seed = whole_number("seed", seed, least=0)
        self._is_default = sampler is None
        self.is_private = bool(getattr(sampler, "private", False))
        """Whether nothing that is published may depend on a client's norm but by the sampler's noise."""
        self._sampler = sampler
        self._initial_clients = 0 if sampler is None else sampler.num_clients
        self._default_weights: FloatArray = np.zeros(0)  # client weights of the default sampler, unnormalised
        self._ids: dict[str, int] = {}
        self._has_replied: BoolArray = np.zeros(0, dtype=bool)
        self._sizes = DataSizes(num_examples, max_examples)
        self._silence = Silence()
        self._silent_evaluators = Silence()  # a program that resumes learns anew who does not evaluate
        self._said: set[str] = set()  # what the log says once
        self._ledger = None if ledger is None else ledger_file(ledger)
        self._run: RecordedSampler | None = None
        self._num_named = 0  # clients whose names are in the ledger
        self._untouched = copy.deepcopy(sampler) if ledger is not None else None

    @property
    def sampler(self) -> Sampler | None:
        """The sampler; None before the first round if it is the default one."""
        return self._sampler if self._run is None else self._run

    @property
    def in_words(self) -> str:
        """The sampler and the cohort size."""
        sampler = "default sampler" if self._is_default else type(self._sampler).__name__
        return f"{sampler}, {self.cohort_size} clients a round"

    @property
    def any_reply(self) -> bool:
        """Whether there ever was a usable reply."""
        return bool(self._has_replied.any())

    @property
    def cohort_size(self) -> int:
        """K, the most clients that train in a round."""
        return self._cohort_size if self._sampler is None else self._sampler.cohort_size

    @property
    def identities(self) -> tuple[str, ...]:
        """All clients seen so far; the place of an identity is its id in the sampler."""
        return tuple(self._ids)

    @property
    def known_sizes(self) -> set[str]:
        """The clients whose data sizes are known."""
        return self._sizes.known_by_name()

    # A round -----------------------------------------------------------------------------------------

    def draw(self, online: Iterable[str], reported_sizes: Mapping[str, float]) -> DrawnCohort:
        """Let new clients join, then draw a cohort from those online that do not rest.

        With a ledger, a cohort that was drawn before a crash comes first. Nobody joins before it is done.
        """
        cohort = None if self._run is None else self._run.draw_again()
        is_asked_again = cohort is not None
        if cohort is None:
            names = list(online)
            sampler = self._join([name for name in names if name not in self._ids], reported_sizes)
            ids = np.sort(np.array([self._ids[name] for name in names], dtype=np.int64))
            available = self._silence.awake(ids, least=sampler.cohort_size)
            all_available = len(available) == sampler.num_clients > sampler.cohort_size
            probabilities = sampler.probabilities(available)
            asked = None if all_available else available
            cohort = sampler.draw(asked)
            check_available(sampler, cohort, asked)
        else:
            sampler = self._open_sampler()
            ids = np.array([self._ids[name] for name in online if name in self._ids], dtype=np.int64)
            available = np.arange(sampler.num_clients) if cohort.available is None else cohort.available
            probabilities = sampler.probabilities(available)
        identities = self.identities
        return DrawnCohort(
            cohort=cohort,
            names=tuple(identities[client] for client in cohort.clients),
            told_sizes=self._sizes.told(cohort.clients),
            known_sizes=self._sizes.known(cohort.clients),
            available=available,
            probabilities=probabilities / probabilities.sum(),
            total_size=self._sizes.total(available),
            sizes_known=self._sizes.all_known(available),
            resting=self._silence.resting(np.setdiff1d(ids, available)),
            is_asked_again=is_asked_again,
        )

    def evaluators(self, names: Collection[str], least: int) -> list[str]:
        """Those of these clients that do not rest, and some that do if there are too few to evaluate."""
        known = np.array([self._ids[name] for name in names if name in self._ids], dtype=np.int64)
        new = [name for name in names if name not in self._ids]
        identities = self.identities
        awake = self._silence.awake(known, least - len(new), self._silent_evaluators)
        return new + [identities[client] for client in awake]

    def observe_evaluation(self, asked: Collection[str], silent: Collection[str]) -> None:
        """Take note of who was asked to evaluate, and did not answer."""
        known = [name for name in asked if name in self._ids]
        heard = np.array([name not in silent for name in known], dtype=bool)
        ids = np.array([self._ids[name] for name in known], dtype=np.int64)
        resting, _ = self._silent_evaluators.record(ids, heard)
        for client in resting:
            log.warning(
                "\t> %s has not answered %d times in a row when it was asked to evaluate. It is asked less "
                "often until it does.",
                *(self.identities[client], LEAST_SILENT),
            )

    def sizes_of(self, names: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """The sizes of these clients that are known, and those that were given; nan for the others."""
        return self._sizes.by_name(names)

    def counted_evaluation(self, reported: float) -> float:
        """What a number of examples counts for that a client reports in an evaluation."""
        return self._sizes.bounded(reported)

    def compare_size(self, client: int, reported: float) -> None:
        """Compare the number of examples in a reply with what the client has told when it was asked."""
        self._sizes.compare(client, reported)

    def count(self, drawn: DrawnCohort, reported: FloatArray) -> CountedReplies:
        r"""How much the replies may count together; changes nothing. ``reported`` are the sizes in them.

        With n the examples of all available clients, the cohort weights have :math:`\sum n_m
        \mathrm{weight}_m = n` on average, and the step is unbiased. Two cases are different:

        - If some sizes are not known, the weights are multiplied by a factor that makes this sum n in every
          round. The step is then a weighted mean of the replies, as stable as that of plain FedAvg, and a
          ratio of two unbiased estimates. The estimate of n then does not matter.
        - If the sum is above ``largest_total_weight`` times n, the weights are lowered so that it is not.
        """
        heard = ~np.isnan(reported)
        replied = drawn.cohort.replied(heard)
        known_sizes = self._sizes.copy()
        known_sizes.record(replied.clients, reported[heard], replied.weights)
        sizes = np.where(heard, known_sizes.known(drawn.cohort.clients), np.nan)
        total = drawn.total_size
        if not drawn.sizes_known and (np.isnan(total) or len(drawn.cohort) == len(drawn.available)):
            total = known_sizes.total(drawn.available)  # if everybody was asked, there is no bias
        examples = float(np.sum(drawn.counted(sizes)[heard] * replied.weights))
        if not examples > 0.0 or not total > 0.0:
            return CountedReplies(known_sizes, sizes, total, 1.0)
        if not drawn.sizes_known:
            return CountedReplies(known_sizes, sizes, total, total / examples)
        largest = largest_total_weight(drawn.cohort.cohort_size)
        factor = min(1.0, largest * total / examples)
        if factor < 1.0:
            self._say_once(
                "weight",
                "\t> The replies of this round would count %.1f times as much as all clients together. They "
                "are lowered to %.1f times, here and later. This happens if large clients are drawn with "
                "small probabilities%s",
                examples / total,
                largest,
                ", such as one that has reported far fewer examples before. A larger cohort helps, or sizes "
                "given on the server (num_examples=)."
                if self._is_default
                else ": use the default sampler (cohort_size=...), or a larger cohort.",
            )
        return CountedReplies(known_sizes, sizes, total, factor)

    def weigh(
        self,
        drawn: DrawnCohort,
        counted: CountedReplies,
        weighted_norms: FloatArray,
        sizes: FloatArray,
        offline_examples: float,
    ) -> WeighedReplies:
        """Weigh the replies, whose norms are multiplied by their sizes; changes nothing.

        ``weighted_norms`` and ``sizes`` are aligned with the cohort; nan means no reply.
        ``offline_examples`` are those that clients offline have in the sum, by a memory.
        """
        heard = ~np.isnan(weighted_norms)
        replied, counts = drawn.cohort.replied(heard), drawn.counted(sizes)[heard]
        total = counted.total_size + offline_examples
        scale = 1.0 / total if total > 0.0 else 0.0
        norms = scale * weighted_norms[heard]
        sampler_norms = np.full(len(weighted_norms), np.nan)
        sampler_norms[heard] = norms / self._own_weights(replied.clients)
        return WeighedReplies(
            replied=replied,
            probabilities=drawn.probabilities[np.searchsorted(drawn.available, replied.clients)],
            shares=scale * counts,
            feedback=norms**2,
            step_scale=scale,
            total_weight=counted.factor * scale * float(np.sum(counts * replied.weights)),
            sampler_norms=sampler_norms,
            known_sizes=counted.known_sizes,
            num_replied=int(self._has_replied.sum() + np.sum(~self._has_replied[replied.clients])),
        )

    def observe(
        self,
        drawn: DrawnCohort,
        weighed: WeighedReplies,
        usable: BoolArray,
        state: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Take note of the replies and let the sampler learn. A ledger has ``state()`` on disk before.

        ``usable`` says whose reply could be used, aligned with the cohort. Who sends none rests.
        """
        self._sizes = weighed.known_sizes
        self._has_replied[weighed.replied.clients] = True
        self._take_note_of_silence(drawn.cohort.clients, usable)
        if self._run is not None:
            self._run.attach(drawn.cohort.round_index, STATE, state())
        self._open_sampler().observe(drawn.cohort, weighed.sampler_norms)
        name = self._sizes.dominant()
        if name is not None:
            self._say_once(
                f"dominant {name}",
                "\t> %s reports more examples than all other clients together, so it decides most of the "
                "model. If the number is wrong, give the right one on the server: num_examples={%r: ...}",
                *(name, name),
            )

    def _take_note_of_silence(self, clients: IntArray, usable: BoolArray) -> None:
        identities = self.identities
        silent, back = self._silence.record(clients, usable)
        for client in silent:
            log.warning(
                "\t> %s has sent no usable reply %d times in a row. It is asked less often until it does.",
                *(identities[client], LEAST_SILENT),
            )
        for client in back:
            log.info("\t> %s has sent a usable reply again", identities[client])

    def _say_once(self, what: str, message: str, *values: object) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning(message, *values)

    # Joining -----------------------------------------------------------------------------------------

    def _join(self, newcomers: list[str], reported_sizes: Mapping[str, float]) -> Sampler:
        """Give newcomers their ids, and make the sampler large enough for them."""
        newcomers = sorted(newcomers, key=natural_order)
        for name in newcomers:
            self._ids[name] = len(self._ids)
        self._has_replied = np.concatenate([self._has_replied, np.zeros(len(newcomers), dtype=bool)])
        self._sizes.join(newcomers, reported_sizes)
        self._silence.join(len(newcomers))
        self._silent_evaluators.join(len(newcomers))
        if unmatched := self._sizes.matched_nobody():
            self._say_once(
                "unmatched",
                "num_examples names clients that are not online: %s. Those online are %s.",
                *(some(unmatched), some(self.identities)),
            )
        if self._sampler is None:
            self._initial_clients = len(newcomers)
            self._default_weights = self._sizes.known_shares(np.arange(self._initial_clients))
            self._sampler = self._build_default(self._initial_clients, self._default_weights)
        if self._ledger is not None and self._run is None:
            if self._ledger.exists():
                raise ConfigurationError(f"ledger {self._ledger} holds a run: call start() to continue it")
            self._open_run()
        sampler = self._open_sampler()
        if self._is_default and len(self._ids) > len(self._default_weights):
            beyond = np.arange(len(self._default_weights), len(self._ids))
            relative = self._sizes.relative_sizes(beyond, np.arange(self._initial_clients))
            self._default_weights = np.append(self._default_weights, relative / self._initial_clients)
        if self._run is not None and newcomers:
            self._run.attach(self._run.round_index, CLIENTS, self.state(with_sampler=False))
        if len(self._ids) > sampler.num_clients:
            self._add_clients(sampler, np.arange(sampler.num_clients, len(self._ids)))
        named = self._num_named
        if self._run is not None and named < len(self._ids):
            self._run.name_clients(np.arange(named, len(self._ids)), self.identities[named:])
            self._num_named = len(self._ids)
        return sampler

    def _build_default(self, num_clients: int, weights: FloatArray) -> Sampler:
        equal = bool(np.all(weights[:num_clients] == weights[0]))
        client_weights = None if equal else weights[:num_clients]
        return default_sampler(num_clients, self._cohort_size, client_weights=client_weights, seed=self._seed)

    def _add_clients(self, sampler: Sampler, newcomers: IntArray) -> None:
        add_clients = getattr(sampler, "add_clients", None)
        if add_clients is None:
            raise ConfigurationError(
                f"sampler was built for {sampler.num_clients} clients and has no add_clients, but "
                f"{len(newcomers)} more have joined: build it for all clients that will ever appear"
            )
        if self._is_default:
            weights = self._default_weights[newcomers]
            add_clients(weights, client_weights=weights)
        else:
            add_clients(len(newcomers))

    def _own_weights(self, clients: IntArray) -> FloatArray:
        """The client weights that the sampler multiplies norms by; 1 if its weight is 0."""
        if not self._is_default:
            return np.full(len(clients), 1.0 / self._open_sampler().num_clients)
        weights = self._default_weights[clients] / self._default_weights.sum()
        return np.where(weights > 0.0, weights, 1.0)

    def _open_sampler(self) -> Sampler:
        if self.sampler is None:
            raise ConfigurationError("draw must be called first: there is no sampler before the first round")
        return self.sampler

    # State -------------------------------------------------------------------------------------------

    def state(self, *, with_sampler: bool) -> dict[str, Any]:
        """What a resumed run needs to know; a ledger has the sampler itself."""
        kept = self.sampler.state_dict() if with_sampler and self.sampler is not None else {}
        return {
            "initial_clients": self._initial_clients,
            "identities": json.dumps(self.identities),
            "has_replied": self._has_replied.copy(),
            "default_weights": self._default_weights.copy(),
            **self._sizes.state(),
            **self._silence.state(),
            **{SAMPLER + name: value for name, value in kept.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned. Nothing is changed if it does not fit."""
        identities = string_list(state, "identities")
        has_replied = array(state, "has_replied", np.bool_, (len(identities),))
        initial_clients = int(scalar(state, "initial_clients"))
        default_weights = array(state, "default_weights", np.float64, (None,))
        sizes = self._sizes.restored(state, identities)
        silence = self._silence.restored(state, len(identities))
        kept = part(state, SAMPLER)
        if kept:
            sampler = (
                self._build_default(initial_clients, default_weights)
                if self._is_default
                else self._open_sampler()
            )
            sampler.load_state_dict(kept)
            self._sampler = sampler
        self._ids = {name: place for place, name in enumerate(identities)}
        self._has_replied, self._sizes, self._silence = has_replied, sizes, silence
        self._silent_evaluators = Silence()
        self._silent_evaluators.join(len(identities))
        self._initial_clients, self._default_weights = initial_clients, default_weights

    # Ledger ------------------------------------------------------------------------------------------

    def refuse_state_beside_ledger(self) -> None:
        """Raise if there is a ledger: its sampler would know nothing of what a loaded state has learnt."""
        if self._ledger is not None:
            raise ConfigurationError(
                f"a state can't be loaded beside a ledger, which keeps its own: got ledger={self._ledger}"
            )

    def resume(self) -> dict[str, Any] | None:
        """Continue the run in the ledger, if there is one. Returns the last state given to ``observe``."""
        if self._run is not None:  # rounds were run without start
            self.close()
        if self._ledger is None or not self._ledger.exists():
            return None
        self._check_same_sampler(self._ledger)
        if self._is_default:
            self._initial_clients, self._default_weights = _initial_weights(self._ledger)
            self._sampler = self._build_default(self._initial_clients, self._default_weights)
        state, newest_clients = _last_states(self._open_run(), self._ledger)
        if newest_clients is not None:
            self.restore(newest_clients)
        return state

    def _check_same_sampler(self, ledger: Path) -> None:
        """Raise, in the words of our own arguments, if the run in the ledger was begun with other ones."""
        with read_run(ledger) as record:
            kind, size, seed, private = record.sampler, record.cohort_size, record.seed, record.private
        begun, give = (
            f"the run in {ledger} was begun with",
            "Give the same, or another ledger to begin a new run",
        )
        given = self._untouched
        if given is None:
            if kind != DEFAULT_KIND:
                raise ConfigurationError(f"sampler must be given: {begun} a {kind}, got cohort_size. {give}")
            if size != self._cohort_size:
                raise ConfigurationError(f"{begun} cohort_size={size}, got {self._cohort_size}. {give}")
            if seed != self._seed:
                raise ConfigurationError(f"{begun} seed={seed}, got {self._seed}. {give}")
            return
        if kind != type(given).__name__:
            what = "the default sampler (cohort_size=...)" if kind == DEFAULT_KIND else f"a {kind}"
            raise ConfigurationError(f"{begun} {what}, got sampler={type(given).__name__}. {give}")
        if size is not None and size != given.cohort_size:
            raise ConfigurationError(
                f"{begun} a sampler of cohort_size={size}, got {given.cohort_size}. {give}"
            )
        own_seed = given.state_dict().get("seed")
        if seed is not None and own_seed is not None and seed != int(own_seed) and not private:
            raise ConfigurationError(f"{begun} a sampler of seed={seed}, got {own_seed}. {give}")

    def note(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep small values of the last round in the ledger, if there is one."""
        if self._run is not None and self._run.last_observed is not None:
            self._run.note(self._run.last_observed, name, values)

    def log(self, metrics: Mapping[str, Any], before_first: Mapping[str, Any]) -> None:
        """Log the numbers among the metrics of the last round in the ledger, if there is one.

        With the first round go those of the model before it. Lists, and names that no terminal should see,
        are left out: metrics come from the clients.
        """
        if self._run is None or self._run.last_observed is None:
            return
        last = self._run.last_observed
        for round_index, values in ((-1, before_first if last == 0 else {}), (last, metrics)):
            numbers = {}
            for name, value in values.items():
                with suppress(ConfigurationError):
                    numbers[name] = logged_number(name, value)
            if numbers:
                self._run.log(numbers, round_index=round_index)

    def notes(self, name: str) -> list[dict[str, Any]]:
        """What is in the ledger under that name, oldest first."""
        return [] if self._run is None else list(self._run.notes(name).values())

    def close(self) -> None:
        """Close the ledger, if it is open."""
        run, self._run = self._run, None
        if run is not None:
            try:
                self._sampler = run.sampler
            finally:
                run.close()

    def _open_run(self) -> RecordedSampler:
        """Open the ledger, which makes its samplers itself: copies of the given one, or default ones."""
        if self._ledger is None or self._sampler is None:
            raise ConfigurationError("ledger can't be opened before there is a sampler")
        untouched, num_clients, weights = self._untouched, self._initial_clients, self._default_weights.copy()

        def make_sampler() -> Sampler:
            return (
                self._build_default(num_clients, weights) if untouched is None else copy.deepcopy(untouched)
            )

        self._run = open_run(self._ledger, make_sampler)
        self._num_named = len(self._run.client_names)
        return self._run


def ledger_file(ledger: str | os.PathLike[str]) -> Path:
    """The file of the run, whether it exists or not; an error if it can't be written or is not a run.

    The run itself is opened in the first round, when the number of clients is known. Nothing is created here.
    """
    try:
        run = run_file(ledger)
    except SortitionError:
        raise ConfigurationError(f"ledger must name a file, got {ledger!r}") from None
    if os.path.exists(run):
        try:
            check_header(run)
        except LedgerError as error:
            raise LedgerError(f"ledger must be a new file or a run to continue: {error}") from None
    elif not os.path.isdir(run.parent):
        raise ConfigurationError(f"ledger must be in a directory that exists, got {str(ledger)!r}")
    for path in (run.parent, side_directory(run), run):
        needed = os.W_OK | os.X_OK if os.path.isdir(path) else os.W_OK
        if os.path.exists(path) and not os.access(path, needed):
            raise ConfigurationError(f"ledger {os.fspath(ledger)!r} can't be used: {path} is not writable")
    return run


def _initial_weights(ledger: Path) -> tuple[int, FloatArray]:
    """The number of clients that the default sampler of this run was built for, and their weights."""
    with read_run(ledger) as record:
        settings = record.settings
    num_clients, weights = int(settings["num_clients"]), settings.get("client_weights")
    equal = np.full(num_clients, 1.0 / num_clients)
    return num_clients, equal if weights is None else np.asarray(weights, dtype=float)


def _last_states(run: RecordedSampler, ledger: Path) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The state after the last complete round, and the newest state of the clients; None if there is none.

    Usually the newest state of the clients is the one written when the last newcomers joined, in a round that
    is not complete. But a cohort drawn before a crash may get its replies after newcomers have joined for the
    next round. Then the state at the end of its round is newer. The newest is the one that knows the most
    clients; of two that know equally many, it is the one of the complete round.
    """
    last = -1 if run.last_observed is None else run.last_observed
    state = run.attachment(last, STATE) if last >= 0 else None
    if last >= 0 and state is None:
        raise LedgerError(f"ledger {ledger} is not a run of AdaptiveSampling: its rounds have no such state")
    joined = (run.attachment(number, CLIENTS) for number in range(last + 1, run.round_index + 1))
    found = [kept for kept in (state, *joined) if kept is not None]
    return state, max(found, key=lambda kept: np.size(kept.get("has_replied", ())), default=None)


def string_list(state: Mapping[str, Any], name: str) -> list[str]:
    """A list of different strings from a state."""
    try:
        strings = json.loads(str(text(state, name)))
    except ValueError:
        strings = None
    if not isinstance(strings, list) or not all(isinstance(each, str) for each in strings):
        raise StateError(f"state must hold {name!r}, a list of strings, got {state.get(name)!r}")
    if len(set(strings)) != len(strings):
        raise StateError(f"state must hold {name!r}, a list of different strings, got {strings!r}")
    return strings
