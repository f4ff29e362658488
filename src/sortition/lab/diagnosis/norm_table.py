"""A table of norms: what each client's update measured, in one round or in several."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray
from sortition.core.validation import named_keywords, printable, real_numbers

COLUMNS = ("client", "size", "norm", "round", "noise")
NEEDED = COLUMNS[:3]


@dataclass(frozen=True)
class NormTable:
    r"""The norms of all clients in all rounds.

    ``sizes`` are the clients' amounts of data, or anything that the client weights are proportional to.
    ``noise`` is the standard deviation of a client's update, which its mini-batches cause,
    :math:`\sqrt{\mathbb E\|g_m - \mathbb E g_m\|^2}`, in the unit of the norms.

    >>> table = NormTable(sizes=[1.0, 3.0], norms=[2.0, 1.0])
    >>> table.client_weights, table.num_rounds
    (array([0.25, 0.75]), 1)
    """

    sizes: FloatArray
    """Of shape (M,)."""
    norms: FloatArray
    """Of shape (T, M), or (M,) for one round; nan where a client did not reply."""
    noise: FloatArray | None = None
    """Of the same shape; None if it is not known."""

    @named_keywords
    def __init__(self, *, sizes: ArrayLike, norms: ArrayLike, noise: ArrayLike | None = None) -> None:
        def checked(name: str, values: ArrayLike) -> FloatArray:
            numbers = real_numbers(name, values, ConfigurationError).astype(float)
            if np.any(numbers < 0.0) or np.any(np.isinf(numbers)):
                raise ConfigurationError(f"{name} must be finite and at least 0")
            return numbers

        own = checked("sizes", sizes)
        if own.ndim != 1 or len(own) < 2 or not own.sum() > 0.0:
            raise ConfigurationError(
                f"sizes must be a vector of two numbers or more, not all 0, got shape {own.shape}"
            )
        object.__setattr__(self, "sizes", own)
        object.__setattr__(self, "norms", self._in_shape("norms", checked("norms", norms)))
        if np.all(np.nan_to_num(self.norms) == 0.0):
            raise ConfigurationError("norms must not all be 0: then there is nothing to sample")
        given = None if noise is None else self._in_shape("noise", checked("noise", noise))
        if given is not None and given.shape != self.norms.shape:
            raise ConfigurationError(f"noise must have the shape of norms, got {given.shape}")
        object.__setattr__(self, "noise", given)

    def _in_shape(self, name: str, values: FloatArray) -> FloatArray:
        table = np.atleast_2d(values)
        if table.ndim != 2 or table.shape[1] != len(self.sizes) or not len(table):
            raise ConfigurationError(
                f"{name} must have one entry a client, or one row a round with one entry a client, "
                f"for {len(self.sizes)} clients, got shape {values.shape}"
            )
        return table

    @property
    def num_clients(self) -> int:
        """M."""
        return len(self.sizes)

    @property
    def num_rounds(self) -> int:
        """T."""
        return len(self.norms)

    @property
    def client_weights(self) -> FloatArray:
        """lambda, in proportion to the sizes."""
        return np.asarray(self.sizes / self.sizes.sum())


def read_norms(path: str | os.PathLike[str]) -> NormTable:
    """A table from a CSV file with the columns client, size, norm and, if there are any, round and noise.

    Without rounds the file is one pass over the clients. In each round all clients have a line; an empty norm
    is no reply. An error names the line and the column.
    """
    file = Path(path)
    try:
        with open(file, newline="", encoding="utf-8-sig") as opened:
            return _table_of(file, csv.reader(opened))
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ConfigurationError(f"{printable(str(file))} can't be read: {said}") from None


def _table_of(file: Path, lines: Iterator[list[str]]) -> NormTable:
    where = printable(str(file))
    columns = [name.strip().lower() for name in next(lines, [])]
    wrong = [name for name in columns if name not in COLUMNS]
    if wrong or not set(columns) >= set(NEEDED) or len(set(columns)) < len(columns):
        raise ConfigurationError(
            f"{where}, line 1: the columns must be client, size, norm and, if there are any, round and "
            f"noise, got {', '.join(map(printable, columns)) or 'nothing'}"
        )
    sizes: dict[str, float] = {}
    cells: dict[tuple[str, str], tuple[float, float]] = {}
    number = 1
    for number, values in enumerate(lines, start=2):
        if not any(value.strip() for value in values):
            continue
        if len(values) != len(columns):
            raise ConfigurationError(
                f"{where}, line {number}: expected {len(columns)} values, got {len(values)}"
            )
        row = {name: value.strip() for name, value in zip(columns, values, strict=True)}
        at = f"{where}, line {number}"
        client, round_name = row["client"], row.get("round", "")
        if not client:
            raise ConfigurationError(f"{at}, column client: expected a name, got nothing")
        size = _number(at, "size", row)
        if sizes.setdefault(client, size) != size:
            raise ConfigurationError(
                f"{at}, column size: client {printable(client)} had size {sizes[client]:g} before, "
                f"got {size:g}"
            )
        if (round_name, client) in cells:
            raise ConfigurationError(
                f"{at}, column client: {printable(client)} is there twice"
                + (f" in round {printable(round_name)}" if round_name else "; add a column round")
            )
        norm = _number(at, "norm", row, silent=True)
        noise = _number(at, "noise", row) if "noise" in row else math.nan
        cells[round_name, client] = norm, noise
    rounds = list(dict.fromkeys(name for name, _ in cells))
    for name in rounds:
        missing = next((client for client in sizes if (name, client) not in cells), None)
        if missing is not None:
            raise ConfigurationError(
                f"{where}: round {printable(name)} has no line for client {printable(missing)}; leave its "
                "norm empty if it did not reply"
            )
    if len(sizes) < 2:
        raise ConfigurationError(f"{where}: expected two clients or more, got {len(sizes)}")
    both = np.array([[cells[name, client] for client in sizes] for name in rounds])
    noise_given = "noise" in columns
    return NormTable(
        sizes=list(sizes.values()), norms=both[..., 0], noise=both[..., 1] if noise_given else None
    )


def _number(at: str, column: str, row: Mapping[str, str], silent: bool = False) -> float:
    text = row[column]
    if silent and text.lower() in ("", "nan"):
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise ConfigurationError(
            f"{at}, column {column}: expected a finite number of at least 0, got {printable(text)!r}"
        )
    return value
