"""Where numbers are asked for, nothing else is taken for a number, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    Cohort,
    CohortError,
    EmpiricalBayesSampler,
    FixedSampler,
    NormPrivacy,
    OptimalSampler,
    SortitionError,
)
from sortition.ledger import open_run
from sortition.ledger.encoding import pack

MADE: dict[str, Callable[[Any], Any]] = {
    "masked": lambda a: np.ma.array(a, mask=[True, *[False] * (len(a) - 1)]),
    "masked-nowhere": lambda a: np.ma.array(a),
    "strings": lambda a: np.asarray(a).astype(str),
    "list-of-strings": lambda a: [str(x) for x in a],
    "bytes": lambda a: np.asarray(a).astype(bytes),
    "bytearray": lambda a: bytearray(len(a)),
    "memoryview": lambda a: memoryview(np.asarray(a)),
    "booleans": lambda a: np.ones(len(a), dtype=bool),
    "list-of-booleans": lambda a: [True] * len(a),
    "boolean-among-numbers": lambda a: [True, *a[1:]],
    "boolean-of-numpy-among-numbers": lambda a: (np.bool_(True), *a[1:]),
    "boolean-array-among-numbers": lambda a: [np.array(True), *a[1:]],
    "masked-among-numbers": lambda a: [np.ma.masked, *a[1:]],
    "list-of-masked": lambda a: [np.ma.array(x, mask=True) for x in a],
    "dates": lambda a: np.arange(len(a)).astype("datetime64[s]"),
    "durations": lambda a: np.arange(len(a)).astype("timedelta64[s]"),
    "complex": lambda a: np.asarray(a) + 0j,
    "structured": lambda a: np.array([(x,) for x in a], dtype=[("x", float)]),
    "objects": lambda a: np.asarray(a).astype(object),
    "none": lambda a: [None] * len(a),
}
COMMON: dict[str, Any] = {"num_clients": 4, "cohort_size": 2}
BUILT: dict[str, Callable[[Any], object]] = {
    "client_weights": lambda make: AvareSampler(**COMMON, client_weights=make([0.25] * 4)),
    "probabilities": lambda make: FixedSampler(**COMMON, probabilities=make([0.25] * 4)),
    "prior": lambda make: AdaptiveOSMDSampler(**COMMON, num_rounds=9, prior=make([0.25] * 4)),
    "clients of a Cohort": lambda make: Cohort(0, 2, make([1, 2]), [1, 1], [0.5, 0.5], [1.0, 1.0]),
    "counts of a Cohort": lambda make: Cohort(0, 2, [1, 2], make([1, 1]), [0.5, 0.5], [1.0, 1.0]),
    "weights of a Cohort": lambda make: Cohort(0, 2, [1, 2], [1, 1], [0.5, 0.5], make([1.0, 1.0])),
}
ASKED: dict[str, Callable[[Any, Any], object]] = {
    "masses of newcomers": lambda sampler, make: sampler.add_clients(make([0.25, 0.5])),
    "weights of newcomers": lambda sampler, make: sampler.add_clients(2, client_weights=make([0.25, 0.5])),
    "available": lambda sampler, make: sampler.draw(make([1, 2, 3])),
    "removed": lambda sampler, make: sampler.remove_clients(make([1, 2])),
    "looked up": lambda sampler, make: sampler.probabilities(make([1, 2])),
    "calibrate": lambda sampler, make: sampler.calibrate(make([1.0, 2.0, 3.0, 4.0])),
    "clients to calibrate": lambda sampler, make: sampler.calibrate([1.0, 2.0], make([1, 2])),
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("what", BUILT)
def test_nothing_is_built_from_what_is_no_number(what: str, kind: str) -> None:
    with pytest.raises(SortitionError):
        BUILT[what](MADE[kind])


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("what", ASKED)
def test_what_is_no_number_is_refused(what: str, kind: str) -> None:
    sampler = AdaptiveOSMDSampler(**COMMON, num_rounds=9, design="fixed_size")
    before = pack(sampler.state_dict())
    with pytest.raises(SortitionError):
        ASKED[what](sampler, MADE[kind])
    assert pack(sampler.state_dict()) == before


@pytest.mark.parametrize("kind", MADE)
def test_norms_that_are_no_numbers(kind: str, tmp_path: Path) -> None:
    """A masked norm was once believed: the mask was lost."""
    wrong = MADE[kind]([1.0, 2.0])
    sampler, oracle = (
        AvareSampler(**COMMON, design="fixed_size"),
        OptimalSampler(num_clients=2, cohort_size=1),
    )
    cohort = sampler.draw()
    with pytest.raises(SortitionError):
        sampler.observe(cohort, wrong)
    with pytest.raises(SortitionError):
        oracle.reveal(wrong)
    sampler.observe(cohort, [1.0, 2.0])
    with open_run(tmp_path / "run.db", lambda: AvareSampler(**COMMON, design="fixed_size")) as run:
        cohort = run.draw()
        with pytest.raises(SortitionError):
            run.observe(cohort, wrong)
        run.observe(cohort, [1.0, 2.0])


def test_a_mask_of_replies_that_is_masked_itself() -> None:
    cohort = AvareSampler(**COMMON, design="fixed_size").draw()
    with pytest.raises(CohortError, match="masked array"):
        cohort.replied(np.ma.array([True, True], mask=[True, False]))


@pytest.mark.parametrize(
    "wrong",
    ["3", b"3", True, np.bool_(True), 1j, np.complex128(3.0), np.datetime64(3, "s"), np.timedelta64(3), None,
     np.ma.masked, np.ma.array(3.0), np.ma.array(3), np.str_("3"), np.array("3"), np.array(True), [3.0]],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize(
    "name", ["num_clients", "num_rounds", "rate_scale", "exploration", "norm_bound", "seed"]
)
def test_settings_that_are_no_numbers(name: str, wrong: Any) -> None:
    settings = {"num_clients": 4, "cohort_size": 2, "num_rounds": 9, name: wrong}
    if name == "norm_bound":
        settings = {"noise_multiplier": 1.0, name: wrong}
    with pytest.raises(SortitionError, match=name):
        (NormPrivacy if name == "norm_bound" else AdaptiveOSMDSampler)(**settings)


@pytest.mark.parametrize("part", ["clients", "counts", "probabilities", "weights"])
def test_a_cohort_that_was_changed_in_memory_is_noticed(part: str) -> None:
    """``torch.from_numpy`` and the like write where numpy says that it is read-only."""
    sampler = AvareSampler(**COMMON, design="fixed_size")
    cohort = sampler.draw()
    array = getattr(cohort, part)
    address, _ = array.__array_interface__["data"]
    writable = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_double * len(array)).from_address(address))
    before = writable.copy()
    writable[0] = 0.125
    with pytest.raises(CohortError, match="changed"):
        sampler.observe(cohort, [1.0, 2.0])
    writable[:] = before
    sampler.observe(cohort, [1.0, 2.0])


def test_a_cohort_of_arrays_that_are_no_vectors() -> None:
    """Read-only arrays were taken as they are: columns and every second entry were errors of a kernel."""
    sampler = EmpiricalBayesSampler(num_clients=30, cohort_size=4)
    drawn = sampler.draw()
    parts = {name: getattr(drawn, name) for name in ("clients", "counts", "probabilities", "weights")}
    columns, apart = {}, {}
    for name, values in parts.items():
        columns[name], spread = values.reshape(-1, 1), np.zeros(8, values.dtype)
        spread[::2] = values
        spread.setflags(write=False)
        apart[name] = spread[::2]
    with pytest.raises(CohortError, match="clients must be a list or vector"):
        Cohort(0, 4, **columns, ticket=drawn.ticket)
    sampler.observe(Cohort(0, 4, **apart, ticket=drawn.ticket), np.ones(4))
