"""What goes wrong in a Flower federation neither ends nor ruins a run, and the log and the metrics say so.

Each fault is met by FedAvg and FedAdam, without a ledger and with one. With a ledger the program crashes
while replies are on their way and is started again; the result must then be that of the unbroken run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg

from sortition import UniformSampler
from sortition.integrations.flower import AdaptiveSampling
from sortition.integrations.flower.arrays import arrays_of
from sortition.ledger import verify_run
from tests.integrations.flower.conftest import task_identity  # noqa: F401  a fixture
from tests.integrations.flower.fake_grid import Client, FakeGrid, empty_context, federation, round_of
from tests.integrations.flower.test_bad_replies import BAD, rewriting

NUMBER, COHORT_SIZE, ROUNDS = 5, 4, 7
CRASH_AT = 5
WRONG = f"name:client-{NUMBER - 1}"
"""The client that is at fault."""
RESTS = "has sent no usable reply 3 times in a row"
"""What the log says of it, if there is a reason."""


class CrashError(Exception):
    """The program is gone."""


def honest(place: int) -> Client:
    def train(arrays, server_round):
        step = 0.2 * (np.sin(place) - arrays["w"]) + 0.01 * np.cos(server_round + place)
        return {"w": (arrays["w"] + step).astype(arrays["w"].dtype)}

    return Client(examples=10.0 + place, train=train, context=empty_context())


def several(wrong: Client | None = None, number: int = NUMBER) -> list[Client]:
    """Honest clients; the last one is at fault."""
    last = honest(number - 1) if wrong is None else wrong
    last.context = empty_context()
    return [honest(place) for place in range(number - 1)] + [last]


def start(dtype: type = np.float64) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array([0.5, 3.0], dtype=dtype))})


@dataclass
class Fault:
    """What is wrong with a federation, and what is to be said of it."""

    grid: Callable[[], FakeGrid]
    named: str = ""
    """What the log says of the client, in one line; empty if there is nothing to say."""
    counted: str = ""
    """The metric that counts it."""
    model: Callable[[], ArrayRecord] = start
    options: Callable[[], dict[str, Any]] = field(default=lambda: {"cohort_size": COHORT_SIZE})
    largest: float = 3.1
    """No entry of a model may be larger."""


def claims(*sizes: float) -> Client:
    """Reports these numbers of examples in turn."""
    client = honest(NUMBER - 1)

    def lies(server_round):
        client.examples = sizes[server_round % len(sizes)]

    client.fails = lies
    return client


def jumps(by: float, dtype: type = np.float64) -> Client:
    def train(arrays, server_round):
        with np.errstate(over="ignore"):
            return {"w": (arrays["w"] + dtype(by)).astype(dtype)}

    return Client(examples=10.0, train=train)


def fails(how: str) -> Client:
    client = honest(NUMBER - 1)
    client.fails = lambda server_round: how
    return client


def refusing(kind: str) -> Fault:
    return Fault(lambda: rewriting(several(), BAD[kind][0]), BAD[kind][1], "sampling-refused")


def sizes(wrong: Callable[[], Client], named: str) -> Fault:
    return Fault(lambda: federation(several(wrong())), named)


def one_large() -> FakeGrid:
    """200 clients: one has 900 examples, the others have 4."""
    clients = [honest(place) for place in range(200)]
    for client in clients:
        client.examples = 4.0
    clients[17].examples = 900.0
    return federation(clients)


def normalised() -> FakeGrid:
    """A model with batch normalisation, whose variances get smaller."""

    def train(place):
        return lambda arrays, server_round: {
            "w": arrays["w"] + 0.1,
            "bn.running_var": 0.5 * arrays["bn.running_var"] + 0.001 * place,
            "bn.running_mean": arrays["bn.running_mean"] + 0.1 * place,
            "bn.num_batches_tracked": arrays["bn.num_batches_tracked"] + place,
        }

    return federation([Client(examples=1.0 + place**2, train=train(place)) for place in range(NUMBER)])


def normalised_start() -> ArrayRecord:
    arrays = {
        "w": np.zeros(2),
        "bn.running_var": np.ones(2),
        "bn.running_mean": np.zeros(2),
        "bn.num_batches_tracked": np.array(0),
    }
    return ArrayRecord({key: Array(array) for key, array in arrays.items()})


def uniform(cohort_size: int, largest: float) -> dict[str, Any]:
    """Draws that know nothing of the sizes, so that weights are as unequal as these."""
    return {
        "sampler": UniformSampler(num_clients=NUMBER, cohort_size=cohort_size, design="fixed_size", seed=3),
        "num_examples": {
            f"name:client-{place}": largest if place == NUMBER - 1 else 1.0 for place in range(NUMBER)
        },
    }


REPLIES = (
    "another shape",
    "one more",
    "strings",
    "complex",
    "garbage",
    "no metrics",
    "negative size",
    "nan size",
    "list for a size",
    "size in another record",
    "nan",
    "too long with its size",
)
"""Some of the replies that can't be used; each one has a test of its own elsewhere."""
FAULTS: dict[str, Fault] = {
    **{f"reply: {kind}": refusing(kind) for kind in REPLIES},
    "size: 1e308": sizes(lambda: claims(1e308), "reports 1e+308 examples and is counted with"),
    "size: 1e15, then 3": sizes(lambda: claims(1e15, 3.0), "reports 1e+15 examples and is counted with"),
    "size: 0": sizes(lambda: claims(0.0), ""),
    **{
        f"update: longer by {by:g}": Fault(
            lambda by=by: federation(several(jumps(by))), "as long as clip_updates allows", "sampling-refused"
        )
        for by in (1e9, 1e60, 1e130)
    },
    "update: 1e38 in float32": Fault(
        lambda: federation(several(jumps(1e38, np.float32))),
        "as long as clip_updates allows",
        "sampling-refused",
        lambda: start(np.float32),
    ),
    "update: a long one": Fault(
        lambda: federation(several(jumps(300.0))), "was made shorter", "sampling-clipped", largest=1e4
    ),
    "update: a model beyond float32": Fault(
        lambda: federation(several(jumps(3e38, np.float32))),
        "the largest part of the step is that of",
        "sampling-refused",
        lambda: start(np.float32),
        lambda: {**uniform(COHORT_SIZE, 100.0), "clip_updates": False},
        np.inf,
    ),
    **{
        f"silence: {how}": Fault(lambda how=how: federation(several(fails(how))), RESTS)
        for how in ("times out", "raises", "crashes")
    },
    "unknown sizes: one large client": Fault(one_large, largest=3.1),
    "batch norm": Fault(normalised, model=normalised_start, options=lambda: uniform(2, 50.0), largest=30.0),
}
SOME = ["reply: garbage", "reply: nan", "size: 1e308", "update: longer by 1e+60", "silence: raises"]
"""Tried with memories, too."""
CASES = [(fault, False) for fault in FAULTS] + [
    (fault, memory) for fault in SOME for memory in (True, "clients")
]


def run(fault: Fault, inner: type[FedAvg], ledger=None, crash=False, memory=False, grid=None):
    """All rounds, or those up to a crash."""
    strategy = AdaptiveSampling(
        inner(fraction_evaluate=0.0), ledger=ledger, memory=memory, resume_timeout=0.0, **fault.options()
    )
    grid = fault.grid() if grid is None else grid
    send = grid.send_and_receive

    def crashing(messages, *, timeout=None):
        replies = send(messages, timeout=timeout)
        if crash and round_of(messages) == CRASH_AT:
            raise CrashError
        return replies

    def check(server_round, metrics, arrays):
        for key, array in arrays_of(arrays).items():
            assert np.isfinite(array).all()
            assert np.abs(array).max() <= fault.largest
            assert not key.endswith("running_var") or (array > 0.0).all()

    grid.send_and_receive = crashing
    if crash:  # no goodbye to the ledger
        strategy._pool.close = lambda: strategy._pool._run._abandon()
    try:
        return strategy.start(grid, fault.model(), num_rounds=ROUNDS, on_round=check)
    finally:
        grid.send_and_receive = send


def lines_about(fault: Fault, caplog) -> list[str]:
    lines = [each.getMessage() for each in caplog.records]
    return [line for line in lines if fault.named in line and WRONG in line]


def by_round(result) -> list[MetricRecord]:
    metrics = result.train_metrics_clientapp
    assert sorted(metrics) == list(range(1, ROUNDS + 1))
    return list(metrics.values())


@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
@pytest.mark.parametrize(("kind", "memory"), CASES)
def test_a_run_ends_with_a_finite_model_and_an_honest_log(kind, memory, inner, tmp_path, caplog):
    fault = FAULTS[kind]
    grid = fault.grid()
    with caplog.at_level(logging.INFO, logger="flwr"):
        whole = run(fault, inner, memory=memory, grid=grid)
    check_log_and_metrics(kind, by_round(whole), asked=messages_to_the_last(grid), caplog=caplog)

    # With a ledger, with a crash, and started again.
    grid, ledger = fault.grid(), tmp_path / "run.db"
    with pytest.raises(CrashError):
        run(fault, inner, ledger, crash=True, memory=memory, grid=grid)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="flwr"):
        resumed = run(fault, inner, ledger, memory=memory, grid=grid)
    for key, array in arrays_of(whole.arrays).items():
        np.testing.assert_array_equal(arrays_of(resumed.arrays)[key], array)
    for one, other in zip(by_round(whole), by_round(resumed), strict=True):
        assert dict(one) == dict(other)
    if "beyond" not in kind:
        assert not fault.named or len(lines_about(fault, caplog)) <= 1
    verify_run(ledger)


def messages_to_the_last(grid: FakeGrid) -> int:
    return sum(message.metadata.dst_node_id == max(grid.nodes) for message in grid.sent)


def check_log_and_metrics(kind: str, rounds: list[MetricRecord], asked: int, caplog) -> None:
    fault = FAULTS[kind]
    assert asked or not fault.named
    for metrics in rounds:
        drawn = metrics["sampling-distinct-clients"]
        assert metrics["sampling-replies"] + metrics["sampling-failures"] == drawn
    if fault.named:
        told = lines_about(fault, caplog)
        assert len(told) == 1 or ("beyond" in kind and told)  # each round whose model is refused is told
    if kind.startswith("reply"):
        assert sum(metrics["sampling-refused"] for metrics in rounds) == asked
        assert sum(metrics["sampling-failures"] for metrics in rounds) == asked
    elif kind.startswith("silence"):
        assert sum(metrics["sampling-failures"] for metrics in rounds) == asked
    elif fault.counted:
        assert sum(metrics[fault.counted] for metrics in rounds) >= 1
    resting = [each.getMessage() for each in caplog.records if RESTS in each.getMessage()]
    assert all(WRONG in line for line in resting)
    assert len(resting) == (fault.named == RESTS or fault.counted == "sampling-refused")


@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
@pytest.mark.parametrize("kind", SOME)
def test_a_client_that_is_not_back_after_the_crash_is_named_and_counts_as_no_reply(
    kind, inner, tmp_path, caplog
):
    fault, ledger, grid = FAULTS[kind], tmp_path / "run.db", FAULTS[kind].grid()
    with pytest.raises(CrashError):
        run(fault, inner, ledger, crash=True, grid=grid)
    gone = next(
        message.metadata.dst_node_id
        for message in grid.sent[::-1]
        if message.metadata.dst_node_id < max(grid.nodes)
    )
    name = grid.nodes.pop(gone)[0].name
    with caplog.at_level(logging.INFO, logger="flwr"):
        rounds = by_round(run(fault, inner, ledger, grid=grid))
    told = [each.getMessage() for each in caplog.records if "Drawn before the crash" in each.getMessage()]
    assert len(told) == 1
    assert name in told[0]
    assert rounds[CRASH_AT - 1]["sampling-failures"] >= 1
    verify_run(ledger)
