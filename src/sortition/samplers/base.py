"""What every sampler does alike: rounds, tickets, silence, availability and state."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Required, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.designs import DESIGNS, Design, Weighed, draw_dense, restrict, round_generator
from sortition.core.errors import CohortError, ConfigurationError, StateError
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import available_ids, client_ids, distribution, norms_of, whole_number
from sortition.core.variance import log_feedback

STATE_VERSION = 1
Config = dict[str, int | float | str]


class Common(TypedDict, total=False):
    """The keywords that every sampler takes."""

    num_clients: Required[int]
    cohort_size: Required[int]
    client_weights: ArrayLike | None
    design: Design
    seed: int


class BaseSampler(ABC):
    """Base of our samplers. A subclass says what the probabilities are and how feedback changes them.

    It implements ``_probabilities``, ``_learn``, ``_config``, ``_state`` and ``_restore``; nothing else needs
    to know how a cohort is drawn, recognised, or weighted.
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        client_weights: ArrayLike | None = None,
        design: Design = "with_replacement",
        seed: int = 0,
    ) -> None:
        self._num_clients = whole_number("num_clients", num_clients, least=1)
        self._cohort_size = whole_number("cohort_size", cohort_size, least=1)
        if design not in DESIGNS:
            raise ConfigurationError(f"design must be one of {', '.join(DESIGNS)}, got {design!r}")
        if design != "with_replacement" and cohort_size > num_clients:
            raise ConfigurationError(
                f"cohort_size must be at most num_clients ({num_clients}) for design {design!r}, "
                f"got {cohort_size}"
            )
        self._design: Design = design
        self._seed = whole_number("seed", seed, least=0, most=2**64 - 1)
        self._client_weights: FloatArray | None = None
        if client_weights is not None:
            self._client_weights = distribution("client_weights", client_weights, self._num_clients)
        self._round_index = 0
        self._open: dict[int, int] = {}  # round -> ticket, of the cohorts that await feedback

    # What a subclass says ----------------------------------------------------------------------------

    @abstractmethod
    def _probabilities(self, clients: IntArray | None) -> FloatArray:
        """The probabilities of ``clients``, or of all."""

    @abstractmethod
    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        """Take in the feedback of those who replied: at least one, weights mean-one."""

    def _config(self) -> Config:
        """The settings that a state belongs to, beyond those of every sampler."""
        return {}

    def _state(self) -> dict[str, Any]:
        """What was learnt, as plain arrays and scalars."""
        return {}

    def _restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - nothing learnt, nothing to restore
        """Take back what ``_state`` gave; on a StateError nothing has changed."""

    # The protocol ------------------------------------------------------------------------------------

    @property
    def num_clients(self) -> int:
        """M, the clients that can be drawn."""
        return self._num_clients

    @property
    def cohort_size(self) -> int:
        """K, the draws of a round."""
        return self._cohort_size

    @property
    def design(self) -> Design:
        """How a cohort is drawn from the probabilities."""
        return self._design

    @property
    def round_index(self) -> int:
        """The index that the next cohort will carry: the rounds drawn so far."""
        return self._round_index

    def draw(self, available: ArrayLike | None = None) -> Cohort:
        """Draw the next cohort, from everybody or from the client ids in ``available``.

        With ``available`` the distribution is restricted to these and rescaled; if they are at most K, all
        of them take part, with weight one (Appendix D.2).
        """
        generator = round_generator(self._seed, self._round_index)
        if available is None:
            weighed = self._draw_from_all(generator)
        else:
            weighed = self._draw_from(available_ids(available, self._num_clients), generator)
        cohort = Cohort(self._round_index, self._cohort_size, *weighed)
        ticket = cohort.checksum(self._identity())
        object.__setattr__(cohort, "ticket", ticket)
        self._open[self._round_index] = ticket
        self._round_index += 1
        return cohort

    def observe(self, cohort: Cohort, norms: ArrayLike) -> None:
        """Learn from the update norms, aligned with ``cohort.clients``; nan means no reply.

        Feedback belongs to its cohort: it may come late, in any order, but once.
        """
        self._recognise(cohort)
        values = norms_of("norms", norms, len(cohort), "each client of the cohort")
        replied = ~np.isnan(values)
        if replied.any():
            heard = cohort.replied(replied)
            self._learn(heard, log_feedback(self._weights_of(heard.clients), values[replied]))
        del self._open[cohort.round_index]

    def probabilities(self, clients: ArrayLike | None = None) -> FloatArray:
        """The probabilities of the next draw: all of them, or those of ``clients``."""
        if clients is None:
            return self._probabilities(None)
        return self._probabilities(client_ids("clients", clients, self._num_clients))

    def state_dict(self) -> dict[str, Any]:
        """All that a continued run needs: plain arrays, numbers and strings, nothing to unpickle."""
        return {
            "kind": type(self).__name__,
            "version": STATE_VERSION,
            "seed": self._seed,
            "round_index": self._round_index,
            "open_rounds": np.array(list(self._open.keys()), dtype=np.int64),
            "open_tickets": np.array(list(self._open.values()), dtype=np.int64),
            **{f"config.{name}": value for name, value in self._all_config().items()},
            **self._state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: the run then equals the unbroken one to the bit.

        The sampler must have been built with the settings of the one that was saved; the seed comes from
        the state.
        """
        kind, version = state.get("kind"), state.get("version")
        if kind != type(self).__name__:
            raise StateError(f"state must be of kind {type(self).__name__}, got {kind!r}")
        if version != STATE_VERSION:
            raise StateError(f"state must have version {STATE_VERSION}, got {version!r}")
        for name, value in self._all_config().items():
            if state.get(f"config.{name}") != value:
                raise StateError(
                    f"state must have been saved with {name} = {value!r}, got {state.get(f'config.{name}')!r}"
                )
        seed, round_index = scalar(state, "seed"), scalar(state, "round_index")
        rounds = array(state, "open_rounds", np.int64, (None,))
        tickets = array(state, "open_tickets", np.int64, (len(rounds),))
        self._restore(state)
        self._seed, self._round_index = int(seed), int(round_index)
        self._open = dict(zip(rounds.tolist(), tickets.tolist(), strict=True))

    # Details -----------------------------------------------------------------------------------------

    def _draw_from_all(self, generator: np.random.Generator) -> Weighed:
        return draw_dense(self._design, self._probabilities(None), self._cohort_size, generator)

    def _draw_from(self, available: IntArray, generator: np.random.Generator) -> Weighed:
        if len(available) <= self._cohort_size:
            ones = np.ones(len(available))
            return available, ones.astype(np.int64), ones, ones
        restricted = restrict(self._probabilities(available))
        chosen, counts, probabilities, weights = draw_dense(
            self._design, restricted, self._cohort_size, generator
        )
        return available[chosen], counts, probabilities, weights

    def _weights_of(self, clients: IntArray) -> FloatArray:
        """lambda_m of ``clients``."""
        if self._client_weights is None:
            return np.full(len(clients), 1.0 / self._num_clients)
        return self._client_weights[clients]

    def _recognise(self, cohort: Cohort) -> None:
        if not isinstance(cohort, Cohort):
            raise CohortError(f"cohort must be a Cohort that this sampler drew, got {type(cohort).__name__}")
        ticket = self._open.get(cohort.round_index)
        if ticket is None and 0 <= cohort.round_index < self._round_index:
            raise CohortError(
                f"cohort must await feedback, but round {cohort.round_index} has had its feedback already"
            )
        if ticket is None or cohort.ticket != ticket or cohort.checksum(self._identity()) != ticket:
            raise CohortError(
                f"cohort must be one that this sampler drew, unchanged (with nan for the silent), "
                f"got one of round {cohort.round_index} that it does not know"
            )

    def _identity(self) -> int:
        return zlib.crc32(repr((type(self).__name__, self._seed, self._all_config())).encode())

    def _all_config(self) -> Config:
        return {
            "num_clients": self._num_clients,
            "cohort_size": self._cohort_size,
            "design": self._design,
            "client_weights": fingerprint(self._client_weights),
            **self._config(),
        }


def fingerprint(values: FloatArray | None) -> str:
    """What a state keeps of an array that was given: enough to notice another one."""
    if values is None:
        return "uniform"
    return f"{len(values)} values, crc32 {zlib.crc32(np.ascontiguousarray(values).data):08x}"


def scalar(state: Mapping[str, Any], name: str) -> float:
    """A number out of a state."""
    value = state.get(name)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise StateError(f"state must hold a number called {name!r}, got {value!r}")
    return value if isinstance(value, (int, float)) else value.item()


def array(state: Mapping[str, Any], name: str, dtype: type[np.generic], shape: tuple[int | None, ...]) -> Any:
    """An array out of a state, a copy, with its type and shape checked (None: any length)."""
    value = state.get(name)
    fits = (
        isinstance(value, np.ndarray)
        and value.dtype == dtype
        and value.ndim == len(shape)
        and all(want is None or want == got for want, got in zip(shape, value.shape, strict=True))
    )
    if not isinstance(value, np.ndarray) or not fits:
        got = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)
        wanted = tuple("any" if length is None else length for length in shape)
        raise StateError(f"state must hold {name!r}, {np.dtype(dtype)} of shape {wanted}, got {got}")
    return value.copy()
