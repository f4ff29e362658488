"""What a sampler remembers: its state as plain data, and the settings that a state belongs to."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.designs import RoundGenerator
from sortition.core.errors import StateError
from sortition.core.state import array, count, text
from sortition.core.types import FloatArray
from sortition.samplers.membership import Members

STATE_VERSION = 3
LARGEST_SEED = 2**64 - 1
Config = dict[str, int | float | str]


class Saved(Members):
    """The part of a sampler that can be stored, and continued from what was stored."""

    _generator: RoundGenerator
    _round_index: int
    _open: dict[int, int]  # round -> ticket, of the cohorts that await feedback
    _latest: Cohort | None
    _identity: int | None
    _begun: bool = False

    def _config(self) -> Config:
        """The settings that a state belongs to, beyond those of every sampler."""
        return {}

    def _state(self) -> dict[str, Any]:
        """What was learnt, as plain arrays and scalars."""
        return {}

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``_state`` gave. Where it raises, it is called again, with what was there before."""

    @property
    def is_new(self) -> bool:
        """Whether nothing has happened: no draw, nothing learnt or loaded, nobody joined or left."""
        rosters = (self._roster, self._weights)
        same = all(roster.ids == self._founders and not roster.anybody_left for roster in rosters)
        return same and not self._begun and self._round_index == 0

    def setting(self) -> Config:
        """What samplers that learn from the same cohorts must agree in."""
        config = self._all_config()
        return {name: config[name] for name in ("num_clients", "cohort_size", "client_weights")}

    def state_dict(self) -> dict[str, Any]:
        """All that a continued run needs: plain arrays, numbers and strings, nothing to unpickle."""
        weights = {f"weights.{name}": value for name, value in self._weights.state().items()}
        return {
            "kind": type(self).__name__,
            "version": STATE_VERSION,
            "seed": self._generator.seed,
            "round_index": self._round_index,
            "open_rounds": np.array(list(self._open.keys()), dtype=np.int64),
            "open_tickets": np.array(list(self._open.values()), dtype=np.int64),
            **{f"config.{name}": value for name, value in self._all_config().items()},
            **weights,
            **self._roster.state(),
            **self._defences.state(),
            **self._state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: the run then equals the unbroken one to the bit.

        The sampler must have been built with the settings of the one that was saved; the seed comes from
        the state. On a StateError nothing has changed.
        """
        if not isinstance(state, Mapping):
            raise StateError(f"state must be a mapping, as state_dict gives it, got {type(state).__name__}")
        kind, version = text(state, "kind"), text(state, "version")
        if kind != type(self).__name__:
            raise StateError(f"state must be of kind {type(self).__name__}, got {kind!r}")
        if version != STATE_VERSION:
            raise StateError(f"state must have version {STATE_VERSION}, got {version!r}")
        for name, value in self._all_config().items():
            saved = text(state, f"config.{name}")
            if saved != value:
                raise StateError(f"state must have been saved with {name} = {value!r}, got {saved!r}")
        seed, round_index = count(state, "seed"), count(state, "round_index")
        if seed > LARGEST_SEED or round_index > LARGEST_SEED:
            raise StateError(f"state must hold a seed and a round below 2^64, got {seed} and {round_index}")
        rounds = array(state, "open_rounds", np.int64, (None,))
        tickets = array(state, "open_tickets", np.int64, (len(rounds),))
        weights = self._weights.restored(state, "weights.")
        roster = self._roster.restored(state, "")
        defences = self._defences.restored(state, roster.ids)
        before, learnt = copy(self._roster), self._state()
        self._roster.become(roster)
        try:
            self._restore(state)
        except Exception:
            self._roster.become(before)
            self._restore(learnt)
            raise
        self._weights, self._defences = weights, defences
        self._generator, self._identity, self._latest = RoundGenerator(seed), None, None
        self._round_index, self._begun = round_index, True
        self._open = dict(zip(rounds.tolist(), tickets.tolist(), strict=True))

    # Details -----------------------------------------------------------------------------------------

    def _name(self) -> int:
        """A number that stands for this sampler on its tickets."""
        if self._identity is None:
            name = repr((type(self).__name__, self._generator.seed, self._all_config()))
            self._identity = zlib.crc32(name.encode())
        return self._identity

    def _all_config(self) -> Config:
        return {
            "num_clients": self._founders,
            "cohort_size": self._cohort_size,
            "design": self._design,
            "client_weights": fingerprint(self._given_weights),
            **self._defences.config(),
            **self._config(),
        }


def fingerprint(values: FloatArray | None) -> str:
    """What a state keeps of an array that was given: enough to notice another one."""
    if values is None:
        return "uniform"
    return f"{len(values)} values, crc32 {zlib.crc32(np.ascontiguousarray(values).data):08x}"
