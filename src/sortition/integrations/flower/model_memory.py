"""A memory of the clients' updates of a Flower model: which arrays it holds, and for which clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError, StateError
from sortition.core.state import array, check, count, part
from sortition.core.types import FloatArray
from sortition.core.validation import whole_number
from sortition.memory import STEP, Memory

MEMORY = "memory."
"""Prefix of the memory's entries in the state."""

VARIANCE = "running_var"
BATCH_NORM = ("running_mean", VARIANCE, "num_batches_tracked")
"""Buffers of batch normalisation: statistics of a client's data, and no updates."""

BYTES_PER_NUMBER = 4
"""The memory keeps float32."""


def averaged_keys(model: Mapping[str, NDArray[Any]], given: Collection[str] = ()) -> set[str]:
    """The names of the arrays that are averaged, and are no updates.

    These are integers, booleans, the buffers of batch normalisation, and those that are ``given``.

    >>> sorted(averaged_keys({"fc.weight": np.zeros(2), "bn.running_var": np.ones(2), "steps": np.array(3)}))
    ['bn.running_var', 'steps']
    """
    return {
        key
        for key, array in model.items()
        if array.dtype.kind != "f" or key in given or key.rpartition(".")[2] in BATCH_NORM
    }


def remembered_keys(model: Mapping[str, NDArray[Any]], given: Collection[str] = ()) -> list[str]:
    """The names of the arrays that are remembered: those that are not averaged.

    They are sorted, so that client and server join the arrays in the same order.
    """
    return sorted(set(model) - averaged_keys(model, given))


def check_num_parameters(
    model: Mapping[str, NDArray[Any]], remembered: int, averaged: Collection[str]
) -> int:
    """The number of parameters that are remembered of ``model``; an error if it is 0, or has changed."""
    num_parameters = sum(model[key].size for key in remembered_keys(model, averaged))
    if not num_parameters:
        raise ConfigurationError(
            "a memory needs initial_arrays with floating-point arrays, beside those that are averaged, "
            f"got {sorted(model)}"
        )
    if remembered not in (0, num_parameters):
        raise ConfigurationError(
            f"initial_arrays must have the {remembered} parameters that are in the memory, "
            f"got {num_parameters}"
        )
    return num_parameters


class ClientUpdate(NamedTuple):
    """What a client's reply says to a memory."""

    vector: FloatArray
    """The update of the remembered arrays, as it is to count."""
    size: float
    """The number of examples."""
    memory: ArrayRecord | None
    """What the client remembers, if it holds the memory."""
    is_clipped: bool = False
    """Whether the update was made shorter here, so that it is not the one that the client knows."""


class Combined(NamedTuple):
    """What a memory makes of the replies of a round. The memory itself has not changed."""

    aggregate: FloatArray
    """The sum of the updates, each multiplied by the number of examples."""
    norms: FloatArray
    """The norms of the residuals, multiplied in the same way and aligned with the cohort; nan: no reply."""
    coefficient: float
    """b, how much of the memory is in the aggregate."""
    offline_examples: float
    """The examples that clients offline have in the aggregate."""
    lost: int
    """How many clients have lost the memory that they held."""
    memory: Any
    """The memory after this round."""


class ModelMemory:
    """A ``Memory`` of the clients' updates, each multiplied by the client's number of examples.

    So all clients have weight 1 in the memory, and nothing in it changes when a size becomes known or
    changes, or when clients join or leave. The aggregate is a sum over examples: the caller divides it by
    the number of examples of all available clients, and of b times those offline.

    A client that is offline counts b times, by what is remembered of it, until the memory forgets it:
    ``MemorySum`` has the formula.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = whole_number("memory_bytes", max_bytes, least=1)
        self._memory: Memory | None = None
        self._num_parameters = 0
        self._examples: dict[int, float] = {}  # of each client that is remembered, as they are in its y

    @property
    def coefficient(self) -> float:
        """b of the next round; 0 before the first one."""
        return 0.0 if self._memory is None else float(self._memory.coefficient)

    @property
    def num_bytes(self) -> int:
        """What the remembered updates take."""
        clients = 0 if self._memory is None else self._memory.clients_remembered
        return clients * self._num_parameters * BYTES_PER_NUMBER

    def make_room(
        self, model: Mapping[str, NDArray[Any]], num_clients: int, averaged: Collection[str] = ()
    ) -> None:
        """Raise unless there is room for the updates of ``num_clients`` clients to this model.

        Clients that join later are remembered as long as there is room.
        """
        num_parameters = check_num_parameters(model, self._num_parameters, averaged)
        needed = num_clients * num_parameters * BYTES_PER_NUMBER
        if self._memory is None and needed > self._max_bytes:
            raise ConfigurationError(
                f"memory_bytes is {self._max_bytes:,}, but the updates of {num_clients:,} clients with "
                f"{num_parameters:,} parameters take {needed:,} bytes in float32; raise memory_bytes, or "
                "leave out memory=True"
            )
        if self._memory is None:
            self._allocate(num_parameters)

    def combine(self, cohort: Cohort, updates: Sequence[ClientUpdate | None]) -> Combined:
        """The aggregate, the norms of the residuals, and the memory after it.

        ``updates`` are aligned with the cohort; None means no reply.
        """
        if self._memory is None:
            raise ConfigurationError("make_room must be called before combine")
        after = ModelMemory(self._max_bytes)
        after._num_parameters, after._memory = self._num_parameters, self._memory.copied()
        vectors = [None if update is None else update.size * update.vector for update in updates]
        aggregate, norms = after._memory.combine(cohort, vectors, np.ones(len(cohort)))
        examples = dict(self._examples)
        for client, update in zip(cohort.clients.tolist(), updates, strict=True):
            if update is not None:
                before = examples.get(client, update.size)
                examples[client] = before + STEP * (update.size - before)
        after._examples = {client: examples[client] for client in after._memory.clients.tolist()}
        b, offline = self._memory.coefficient, 0.0
        if cohort.available is not None:
            could_be_drawn = set(cohort.available.tolist())
            offline = b * sum(size for client, size in self._examples.items() if client not in could_be_drawn)
        return Combined(aggregate, norms, b, offline, 0, after)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to know."""
        kept = {} if self._memory is None else self._memory.state_dict()
        if kept:
            kept["examples"] = np.array([self._examples[client] for client in kept["clients"].tolist()])
        return {MEMORY + name: value for name, value in kept.items()}

    def restored(self, state: Mapping[str, Any]) -> ModelMemory:
        """The memory that is in ``state``; an empty one if there is none."""
        kept = part(state, MEMORY)
        restored = ModelMemory(self._max_bytes)
        if kept:
            num_parameters = count(kept, "num_parameters")
            if not 0 < num_parameters * BYTES_PER_NUMBER <= self._max_bytes:
                raise StateError(
                    f"state has a memory of {num_parameters:,} parameters, for which memory_bytes = "
                    f"{self._max_bytes:,} has no room"
                )
            memory = restored._allocate(num_parameters)
            memory.load_state_dict(kept)
            examples = array(kept, "examples", np.float64, (memory.clients_remembered,))
            check("examples", examples, np.isfinite(examples) & (examples >= 0.0), "finite, not negative")
            restored._examples = dict(zip(memory.clients.tolist(), examples.tolist(), strict=True))
        return restored

    def _allocate(self, num_parameters: int) -> Memory:
        """A memory with room for all clients that fit; RAM is taken only for those that have replied."""
        self._num_parameters = num_parameters
        self._memory = Memory(
            num_parameters=num_parameters,
            num_clients=self._max_bytes // (num_parameters * BYTES_PER_NUMBER),
            dtype="float32",
            max_bytes=self._max_bytes,
        )
        return self._memory
