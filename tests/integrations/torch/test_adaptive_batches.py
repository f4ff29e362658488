"""The batch sampler: draws, late feedback, workers, abandoned epochs, resume, ranks, groups."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given as given_cases
from hypothesis import settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

from sortition import CohortError, ConfigurationError, FeedbackError, StateError, diagnose  # noqa: E402
from sortition.core.reshuffling import expected_copies  # noqa: E402
from sortition.core.square_means import LEAST_SHARE  # noqa: E402
from sortition.integrations.torch import AdaptiveBatchSampler, TicketLoader  # noqa: E402
from tests.helpers import Array  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:no norms were observed")  # most tests only draw
DataLoader, TensorDataset = torch.utils.data.DataLoader, torch.utils.data.TensorDataset
N, B = 23, 4
NORMS = 1.0 + np.arange(N) ** 1.5 / 10.0
DATA = TensorDataset(torch.arange(N))


def make(**changes: Any) -> AdaptiveBatchSampler:
    return AdaptiveBatchSampler(**{"num_examples": N, "batch_size": B, "seed": 5, **changes})


def loader(sampler: AdaptiveBatchSampler, workers: int = 0) -> TicketLoader:
    return TicketLoader(DataLoader(DATA, batch_sampler=sampler, num_workers=workers))


def epoch(sampler: AdaptiveBatchSampler, norms: Array = NORMS) -> list[tuple[list[int], list[float]]]:
    """An epoch with feedback: the examples and weights of its batches."""
    found = []
    for batch, ticket in zip(list(sampler), sampler.tickets(), strict=True):
        assert batch == ticket.examples.tolist()
        ticket.observe(norms[ticket.examples])
        found.append((batch, ticket.weights.tolist()))
    return found


def given(batches: list[Any]) -> list[tuple[list[int], list[float]]]:
    return [(values.tolist(), ticket.weights.tolist()) for (values,), ticket in batches]


# Draws --------------------------------------------------------------------------------------------------


def test_without_feedback_every_epoch_is_a_plain_shuffle() -> None:
    sampler = make()
    orders = []
    for _ in range(3):
        batches = list(sampler)
        assert [len(batch) for batch in batches] == [4] * 5 + [3]
        assert len(sampler) == len(batches)
        orders.append(list(chain(*batches)))
        assert sorted(orders[-1]) == list(range(N))
        assert all(np.all(ticket.weights == 1.0) for ticket in sampler.tickets())
    assert orders[0] != orders[1] != orders[2]


def test_equal_norms_are_random_reshuffling_to_the_bit() -> None:
    learner, plain = make(), make()
    for _ in range(4):
        assert epoch(learner, np.full(N, 0.37)) == [(batch, [1.0] * len(batch)) for batch in plain]


def test_probabilities_follow_the_norms_and_copies_follow_the_probabilities() -> None:
    sampler = make()
    epoch(sampler)
    assert np.all(np.diff(sampler.probabilities()) > 0.0)
    for _ in range(5):
        epoch(sampler)
    p = sampler.probabilities()
    assert p.sum() == pytest.approx(1.0)
    assert np.corrcoef(p, np.arange(N))[0, 1] > 0.98  # what was not drawn of late is shrunk more
    assert p.min() >= LEAST_SHARE / N
    batches = epoch(sampler)
    copies = np.bincount(list(chain(*(batch for batch, _ in batches))), minlength=N)
    assert np.all(np.abs(copies - N * p) < 1.2)  # a phase may lie a little outside of its unit, to fill up
    for batch, weights in batches:  # and what was owed, as p changed from epoch to epoch
        assert weights == pytest.approx(1.0 / (N * p[batch]), rel=0.35)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_example_counts_once_an_epoch(ranks: int, drop_last: bool) -> None:
    """Up to what it is owed, which the state tells: weights sum to the epochs, whatever was learnt."""
    rng, epochs = np.random.default_rng(2), 30
    for rank in range(ranks):
        sampler = make(num_replicas=ranks, rank=rank, drop_last=drop_last)
        own = np.flatnonzero(sampler.probabilities())
        start, counts = sampler.state_dict()["debts"].numpy(), np.zeros(N)
        for _ in range(epochs):
            for batch, weights in epoch(sampler, rng.lognormal(size=N)):
                np.add.at(counts, batch, weights)
        owed = sampler.state_dict()["debts"].numpy()
        scale = ranks * sampler._draws / N  # so that the mean weight of a batch is one
        assert counts[own] == pytest.approx(scale * (epochs + start - owed))
        assert np.abs(owed).max() < 4.0


def test_a_batch_is_unbiased_over_the_start() -> None:
    """The mean over as many starts of the first batch with a prior: within five standard errors."""
    values, means = np.sin(np.arange(N)), []
    for seed in range(400):
        sampler = make(seed=seed, prior=NORMS / NORMS.sum())
        next(iter(sampler))
        ticket = next(sampler.tickets())
        means.append(float(ticket.mean(torch.tensor(values[ticket.examples]))))
    assert np.std(means) > 0.01
    assert abs(np.mean(means) - values.mean()) < 5.0 * np.std(means) / np.sqrt(len(means))


def test_the_mean_weighs_and_keeps_gradients() -> None:
    sampler = make()
    epoch(sampler)
    list(sampler)
    ticket = next(sampler.tickets())
    losses = torch.randn(B, requires_grad=True)
    mean = ticket.mean(losses)
    assert mean.dtype == losses.dtype
    mean.backward()
    assert losses.grad is not None
    assert losses.grad.numpy() == pytest.approx(ticket.weights / B)


def test_a_mean_without_gradients_leaves_the_others_theirs() -> None:
    sampler = make()
    list(sampler)
    first, second, *_ = sampler.tickets()
    with torch.inference_mode():
        first.mean(torch.ones(B))
    losses = torch.ones(B, requires_grad=True)
    second.mean(losses * 2.0).backward()
    assert losses.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_batch_has_its_own_weights_over_its_own_size(dtype: Any) -> None:
    """The last batch is smaller; of an epoch that was loaded in its middle, too."""
    sampler = make()
    epoch(sampler)
    list(islice(sampler, 2))
    again = make()
    again.load_state_dict(sampler.state_dict())
    next(iter(again))
    tickets = [*sampler.tickets(), *again.tickets()]
    assert [len(ticket) for ticket in tickets] == [4] * 5 + [3] + [4] * 3 + [3]
    for ticket in tickets:
        losses = torch.sin(torch.tensor(ticket.examples, dtype=dtype))
        wanted = float(ticket.weights @ losses.double().numpy()) / len(ticket)
        found = ticket.mean(losses)
        assert found.dtype == dtype
        assert found.item() == pytest.approx(wanted, rel=100 * torch.finfo(dtype).eps)


def test_the_mean_of_halves_is_taken_in_single_precision() -> None:
    """Within autocast, too, where a product of matrices would be one of halves."""
    sampler = make()
    epoch(sampler)
    list(sampler)
    ticket = next(sampler.tickets())
    losses = torch.tensor([0.1, 1e5, 2.0, 3.0], requires_grad=True)
    wanted = float(ticket.weights @ losses.detach().double().numpy()) / B
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype):
            mean = ticket.mean(losses)
        assert mean.dtype == torch.float32
        assert mean.item() == pytest.approx(wanted, rel=1e-6)
    halves = torch.full((B,), 6e4, dtype=torch.float16)
    assert ticket.mean(halves).item() == pytest.approx(halves[0].item() * ticket.weights.mean(), rel=1e-6)


# A prior and groups -------------------------------------------------------------------------------------


def test_a_prior_is_the_start_and_what_is_shrunk_to() -> None:
    """With a tenth of uniform draws."""
    given_prior = NORMS / NORMS.sum()
    sampler = make(prior=given_prior)
    prior = 0.9 * given_prior + 0.1 / N
    assert sampler.probabilities() == pytest.approx(prior)
    for _ in range(3):  # norms in proportion to it confirm it
        for _, weights in epoch(sampler, prior):
            assert len(weights) <= B
        assert sampler.probabilities() == pytest.approx(prior)
    other = make(prior=given_prior)
    for _ in range(8):
        epoch(other, np.ones(N))
    assert np.abs(other.probabilities() - 1 / N).max() < np.abs(prior - 1 / N).max()
    assert np.all(other.probabilities() >= LEAST_SHARE * prior * (1.0 - 1e-12))


def test_groups_share_what_is_learnt_and_the_objective_stays() -> None:
    groups = np.array(["a", "b", "c"])[np.arange(N) % 3]
    sampler = make(groups=groups)
    for _ in range(2):
        epoch(sampler, np.where(groups == "b", 5.0, 1.0))
    p = sampler.probabilities()
    for group in "abc":
        assert len(set(p[groups == group].tolist())) == 1
    assert p[1] > 1.8 * max(p[0], p[2])
    for _ in range(40):  # p moves no more
        batches = epoch(sampler, np.where(groups == "b", 5.0, 1.0))
    for batch, weights in batches:
        assert N * sampler.probabilities()[batch] * weights == pytest.approx(1.0, rel=0.01)


def test_a_prior_may_be_a_tensor_in_single_precision() -> None:
    single = torch.rand(100_000, requires_grad=True) + 1.0
    sampler = AdaptiveBatchSampler(100_000, 32, prior=single / single.sum())
    exact = single.detach().double().numpy()
    assert sampler.probabilities() == pytest.approx(0.9 * exact / exact.sum() + 0.1 / 100_000, rel=1e-6)
    assert sampler.probabilities().sum() == pytest.approx(1.0, abs=1e-12)


def test_groups_may_be_tensors_and_strings_of_a_data_frame() -> None:
    labels = np.arange(N) % 3
    wanted = make(groups=labels).state_dict()["config.groups"]
    for given in (torch.tensor(labels), np.array(["a", "b", "c"])[labels].astype(object)):
        assert make(groups=given).state_dict()["config.groups"] == wanted


def test_a_group_pools_its_norms() -> None:
    sampler = make(groups=np.zeros(N, dtype=int))
    epoch(sampler)
    assert sampler.norms() == pytest.approx(np.full(N, np.sqrt(np.mean(NORMS**2))))
    assert sampler.probabilities() == pytest.approx(1 / N)


# Feedback -----------------------------------------------------------------------------------------------


def test_feedback_may_come_late_and_in_any_order() -> None:
    prompt, late = make(), make()
    epoch(prompt)
    list(late)
    for ticket in reversed(list(late.tickets())):
        ticket.observe(torch.tensor(NORMS[ticket.examples], requires_grad=True))
    assert np.array_equal(prompt.probabilities(), late.probabilities())
    assert list(prompt) == list(late)


def test_norms_may_be_of_several_kinds() -> None:
    sampler, kinds = make(), [torch.float32, torch.float32, None, torch.bfloat16, torch.int64, torch.float32]
    list(sampler)
    for ticket, kind in zip(sampler.tickets(), kinds, strict=True):
        norms = 1.0 + ticket.examples
        ticket.observe(norms if kind is None else torch.tensor(norms, dtype=kind))
    assert np.array_equal(sampler.norms(), 1.0 + np.arange(N))


def test_feedback_of_an_earlier_epoch_is_used_in_the_next_plan() -> None:
    sampler = make()
    list(sampler)
    tickets = list(sampler.tickets())
    second = list(sampler)
    for ticket in tickets:
        ticket.observe(NORMS[ticket.examples])
    assert sorted(chain(*second)) == list(range(N))
    list(sampler)
    assert not np.all(next(sampler.tickets()).weights == 1.0)


def test_feedback_is_taken_once_and_refused_without_a_trace() -> None:
    sampler = make()
    list(sampler)
    ticket = next(sampler.tickets())
    before = sampler.norms()
    for wrong in ([1.0] * (B - 1), torch.ones(B, 2), ["a"] * B, torch.ones(B, dtype=torch.bool)):
        with pytest.raises(FeedbackError, match=r"^norms "):
            ticket.observe(wrong)
    assert np.array_equal(sampler.norms(), before, equal_nan=True)
    ticket.observe([1.0, np.nan, 2.0, 3.0])
    assert np.isnan(sampler.norms()[ticket.examples]).tolist() == [False, True, False, False]
    with pytest.raises(CohortError, match="batch 0 of epoch 0 has had its feedback"):
        ticket.observe([1.0] * B)


def test_a_ticket_from_before_a_state_was_loaded_is_refused() -> None:
    sampler = make()
    list(sampler)
    old = next(sampler.tickets())
    sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(CohortError, match="batch 0 of epoch 0 is from before load_state_dict"):
        old.observe(np.ones(B))
    assert np.isnan(sampler.norms()).all()
    list(sampler)
    next(sampler.tickets()).observe(np.ones(B))


def test_chance_ends_as_a_plain_shuffle_nearly() -> None:
    """Norms drawn afresh at each visit, all examples alike: the variance over uniform's is mean 1 / (n p)."""
    n, rng = 3000, np.random.default_rng(4)
    sampler = AdaptiveBatchSampler(n, 32)
    for number in range(5):
        epoch(sampler, rng.lognormal(size=n))
        assert np.mean(1.0 / (n * sampler.probabilities())) < (1.25 if number == 0 else 1.03)


@pytest.mark.parametrize("grouped", [False, True])
def test_epochs_that_are_left_early_keep_what_was_learnt(grouped: bool) -> None:
    n = 1000
    groups = np.arange(n) // 100
    norms = np.exp(np.random.default_rng(0).normal(size=n))
    norms = norms[groups] if grouped else norms
    sampler = AdaptiveBatchSampler(n, 10, groups=groups if grouped else None)

    def loss() -> float:
        return float(np.mean(norms**2 / (n * sampler.probabilities())) / np.mean(norms**2))

    for _ in range(4):
        epoch(sampler, norms)
    learnt = loss()
    for _ in range(12):
        next(iter(sampler))
        ticket = next(sampler.tickets())
        _ = ticket.weights
        ticket.observe(norms[ticket.examples])
    assert loss() == pytest.approx(learnt, rel=0.02)
    for _ in range(300):  # three epochs' worth, in parts of a hundredth
        next(iter(sampler))
        ticket = next(sampler.tickets())
        _ = ticket.weights
        ticket.observe(norms[ticket.examples])
    assert loss() == pytest.approx(learnt, rel=0.05)


def test_what_is_no_norm_counts_as_not_known_with_a_warning() -> None:
    sampler = make()
    list(sampler)
    ticket = next(sampler.tickets())
    ticket.observe(torch.tensor([1.0, -2.0, torch.inf, 3.0]))
    with pytest.warns(UserWarning, match=rf"got -2.0 for example {ticket.examples[1]}; 2 of 4 count"):
        found = sampler.norms()
    assert found[ticket.examples].tolist() == pytest.approx([1.0, np.nan, np.nan, 3.0], nan_ok=True)
    sampler.load_state_dict(sampler.state_dict())  # and no second warning


def test_norms_are_copied_and_not_read_before_the_next_epoch() -> None:
    sampler = make()
    list(sampler)
    first, second = list(sampler.tickets())[:2]
    buffer = torch.full((B,), 3.0, dtype=torch.bfloat16)
    first.observe(buffer)
    buffer.fill_(7.0)
    assert np.all(sampler.norms()[first.examples] == 3.0)
    second.observe(torch.ones(B, device="meta"))  # it has a device and a shape, and no values to read
    with pytest.raises(FeedbackError, match=r"^norms "):
        next(islice(sampler.tickets(), 2, None)).observe(torch.ones(B + 1, device="meta"))


def test_a_state_in_every_step_reads_each_norm_once_and_stays_as_it_was() -> None:
    sampler, plain, states = make(), make(), []
    for _ in range(2):
        list(sampler)
        for ticket in sampler.tickets():
            _ = ticket.weights
            ticket.observe(NORMS[ticket.examples])
            states.append((sampler.state_dict(), sampler._heard.read()[2].copy()))
            assert not sampler._heard.waiting
        epoch(plain)
    for state, norms in states:
        assert np.array_equal(state["heard_norms"], norms)
        assert state["heard_norms"].untyped_storage().nbytes() == 8 * len(norms)  # what a file would hold
    assert [len(norms) for _, norms in states] == [4, 8, 12, 16, 20, 23] * 2
    assert np.array_equal(sampler.probabilities(), plain.probabilities())


def test_norms_of_any_size_leave_a_distribution() -> None:
    sampler = make()
    epoch(sampler, np.where(np.arange(N) % 2, 1e300, 1e-300))
    p = sampler.probabilities()
    assert np.all(np.isfinite(p) & (p > 0.0))
    assert p.sum() == pytest.approx(1.0)


DRAWS = """
import hashlib
import numpy as np, torch
from sortition.integrations.torch import AdaptiveBatchSampler
n = 25_000
norms, found = np.random.default_rng(0).lognormal(size=n), hashlib.sha1()
sampler = AdaptiveBatchSampler(n, 100, seed=1)
for _ in range(4):
    list(sampler)
    for ticket in sampler.tickets():
        found.update(ticket.weights.tobytes() + ticket.examples.tobytes())
        ticket.observe(norms[ticket.examples])
print(found.hexdigest())
"""


def test_draws_do_not_depend_on_the_threads_of_blas() -> None:
    found = [
        subprocess.run(
            [sys.executable, "-c", DRAWS],
            env={**os.environ, "OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    ]
    assert len(found[0]) == 41
    assert found[0] == found[1]


# Loaders ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("workers", [0, 2, 4])
def test_workers_change_nothing(workers: int) -> None:
    sampler, plain = make(), make()
    batches = loader(sampler, workers)
    assert len(batches) == len(sampler)
    for _ in range(2):
        got = []
        for (values,), ticket in batches:
            assert values.tolist() == ticket.examples.tolist()
            ticket.observe(NORMS[ticket.examples])
            got.append((values.tolist(), ticket.weights.tolist()))
        assert got == epoch(plain)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_abandoned_epoch_leaves_nothing_behind(workers: int) -> None:
    """But what was learnt from it: the next epoch is whole, and a state has the size it had."""
    sampler = make()
    batches = loader(sampler, workers)
    for _, ticket in islice(batches, 2):
        ticket.observe(np.ones(B))
    whole = given(list(batches))
    assert sorted(chain(*(values for values, _ in whole))) == list(range(N))
    assert sampler.epoch == 1
    sizes = []
    for _ in range(3):
        list(islice(batches, 1))
        sizes.append(
            sum(len(value) for value in sampler.state_dict().values() if isinstance(value, torch.Tensor))
        )
    assert len(set(sizes)) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_whose_epoch_was_left_can_not_go_on(workers: int) -> None:
    """Its state would be that of another epoch. One that is at its end has nothing to ask for."""
    batches = loader(make(), workers)
    first = list(batches)
    outer = iter(batches)
    next(outer)
    state = batches.state_dict()
    for left in (lambda: next(iter(batches)), batches.leave, lambda: batches.load_state_dict(state)):
        left()
        with pytest.raises(
            CohortError, match=r"^this loop is in epoch \d, which the sampler has left: .*one loop"
        ):
            next(outer)
        outer = iter(batches)
        next(outer)
    plain = iter(batches.sampler)
    next(plain)
    next(iter(batches.sampler))
    with pytest.raises(CohortError, match="which the sampler has left"):
        next(plain)
    last = iter(batches)
    for _ in first:
        next(last)
    next(iter(batches))
    assert list(last) == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("leave", [False, True])
def test_who_breaks_out_and_saves_says_whether_the_epoch_is_left(workers: int, leave: bool) -> None:
    def train(batches: TicketLoader, saved: int | None = None) -> Any:
        got, state = [], None
        for number in range(batches.epochs_done, 4):
            for _, ticket in islice(batches, 3):
                ticket.observe(NORMS[ticket.examples])
                got.append((ticket.epoch, ticket.position, ticket.examples.tolist(), ticket.weights.tolist()))
            if leave:
                batches.leave()
            if number == saved:
                state = batches.state_dict()
        return got, state

    unbroken, state = train(loader(make(), workers), saved=1)
    assert [each[:2] for each in unbroken] == [(k, place) for k in range(4) for place in range(3)]
    resumed = loader(make(), workers)
    resumed.load_state_dict(state)
    assert resumed.epochs_done == (2 if leave else 1)
    again, _ = train(resumed)
    if leave:
        assert again == unbroken[6:]
    else:
        assert [each[:2] for each in again[:3]] == [(1, 3), (1, 4), (1, 5)]


def test_an_epoch_that_was_loaded_can_be_left_before_it_begins() -> None:
    batches, other = loader(make()), loader(make())
    for _, ticket in islice(batches, 2):
        ticket.observe(NORMS[ticket.examples])
    other.load_state_dict(batches.state_dict())
    for each in (batches, other):
        each.leave()
        each.leave()
        assert each.epochs_done == 1
    assert given(list(other)) == given(list(batches))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 3, 6])
def test_resume_in_mid_epoch_is_the_unbroken_run_to_the_bit(workers: int, stop: int) -> None:
    def train(batches: TicketLoader, most: int | None = None) -> list[Any]:
        got = list[Any]()
        for pair in islice(batches, most):
            pair[1].observe(NORMS[pair[1].examples])
            got += given([pair])
        return got

    unbroken, broken = loader(make()), loader(make(), workers)
    train(unbroken)
    train(broken)
    wanted = train(unbroken) + train(unbroken)
    got = train(broken, stop) if stop else []
    saved = io.BytesIO()
    torch.save(broken.state_dict(), saved)
    saved.seek(0)
    resumed = loader(make(), workers)
    resumed.load_state_dict(torch.load(saved))
    while len(got) < len(wanted):
        got += train(resumed)
    assert got == wanted
    assert np.array_equal(resumed.sampler.probabilities(), unbroken.sampler.probabilities())


@settings(max_examples=25, deadline=None)
@given_cases(
    saves=st.sets(st.integers(0, 23)),
    ranks=st.integers(1, 2),
    drop_last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_resume_anywhere_is_the_unbroken_run_to_the_bit(
    saves: set[int], ranks: int, drop_last: bool, seed: int
) -> None:
    """Norms that change, and as many saves as you like, within epochs and between them."""

    def train(saves: set[int]) -> list[Any]:
        rng, got = np.random.default_rng(seed), list[Any]()
        batches = loader(make(num_replicas=ranks, rank=0, drop_last=drop_last, seed=seed))
        while len(got) < 24:
            for _, ticket in batches:
                ticket.observe(NORMS[ticket.examples] * rng.lognormal(size=len(ticket)))
                got.append((ticket.examples.tolist(), ticket.weights.tolist()))
                if len(got) in saves:
                    break
            if len(got) in saves:
                state = batches.state_dict()
                batches = loader(make(num_replicas=ranks, rank=0, drop_last=drop_last, seed=seed))
                batches.load_state_dict(state)
        return got

    assert train(saves)[:24] == train(set())[:24]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", ["before", "first", "last"])
def test_epochs_done_is_where_a_saved_run_goes_on(workers: int, stop: str) -> None:
    """However the save falls, all batches of three epochs are given, and no more."""
    batches = loader(make(), workers)
    assert batches.epochs_done == 0
    got = len(list(batches))
    assert batches.epochs_done == 1
    if stop != "before":
        got += len(list(islice(batches, 1 if stop == "first" else len(batches))))
    assert batches.epochs_done == (2 if stop == "last" else 1)
    resumed = loader(make(), workers)
    resumed.load_state_dict(batches.state_dict())
    assert resumed.epochs_done == batches.epochs_done
    for _ in range(resumed.epochs_done, 3):
        got += len(list(resumed))
    assert got == 3 * len(batches)
    assert resumed.epochs_done == 3


def test_a_state_that_was_loaded_can_be_saved_again() -> None:
    batches = loader(make())
    list(islice(batches, 3))
    state = batches.state_dict()
    other = loader(make())
    other.load_state_dict(state)
    assert other.state_dict()["position"] == 3
    rest = iter(other)
    next(rest)
    assert other.state_dict()["position"] == 4
    other.load_state_dict(state)
    assert len(list(other)) == len(batches) - 3


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [2, 6])
def test_stateful_dataloader_resumes(workers: int, stop: int) -> None:
    """To the bit; but what was observed since its workers' state was taken is lost with two workers."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def build() -> TicketLoader:
        return TicketLoader(stateful.StatefulDataLoader(DATA, batch_sampler=make(), num_workers=workers))

    def train(batches: TicketLoader, most: int | None = None) -> list[Any]:
        got = list[Any]()
        for pair in islice(batches, most):
            assert pair[0][0].tolist() == pair[1].examples.tolist()
            pair[1].observe(NORMS[pair[1].examples])
            got += given([pair])
        return got

    unbroken, broken, resumed = build(), build(), build()
    train(unbroken)
    train(broken)
    wanted, got = train(unbroken), train(broken, stop)
    resumed.loader.load_state_dict(broken.loader.state_dict())  # type: ignore[attr-defined]
    for ask in (lambda: resumed.epochs_done, resumed.state_dict):
        with pytest.raises(CohortError, match=r"StatefulDataLoader loads its own state when .*TicketLoader"):
            ask()
    if stop < len(wanted):
        assert got + train(resumed) == wanted
        away = np.abs(resumed.sampler.probabilities() - unbroken.sampler.probabilities()).max()
        assert (away == 0.0) == (workers == 0)
    else:  # it was at its end
        following = train(resumed)
        assert resumed.epochs_done == 3
        assert len(following) == len(wanted)
        assert workers or following == train(unbroken)


# Ranks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_ranks_partition_the_examples_and_keep_in_step(ranks: int) -> None:
    samplers = [make(num_replicas=ranks, rank=rank) for rank in range(ranks)]
    assert len({len(sampler) for sampler in samplers}) == 1
    for _ in range(2):
        seen = [set(chain(*sampler)) for sampler in samplers]
        assert sum(map(len, seen)) == N
        assert set.union(*seen) == set(range(N))


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_the_objective_is_that_of_all_examples_over_ranks(ranks: int) -> None:
    """An example counts for T epochs and what it was owed at first, less what it is owed now; all are alike.

    With a prior, groups and shards of unequal size, and norms that teach.
    """
    epochs, counts, owed = 30, np.zeros(N), np.zeros(N)
    for rank in range(ranks):
        sampler = make(num_replicas=ranks, rank=rank, prior=NORMS / NORMS.sum(), groups=np.arange(N) % 7)
        mine = np.flatnonzero(sampler.probabilities() > 0.0)
        owed[mine] += sampler.state_dict()["debts"].numpy()
        draws = 0
        for _ in range(epochs):
            for examples, weights in epoch(sampler):
                np.add.at(counts, examples, weights)
                draws += len(examples)
        counts[mine] *= N * epochs / (ranks * draws)
        owed[mine] -= sampler.state_dict()["debts"].numpy()
    assert counts == pytest.approx(epochs + owed, rel=1e-9)
    assert np.abs(owed).max() < 0.2 * epochs


def test_a_rank_resumes_with_its_own_state_only() -> None:
    sampler, other = (make(num_replicas=2, rank=rank) for rank in range(2))
    epoch(sampler)
    state = sampler.state_dict()
    again = make(num_replicas=2, rank=0)
    again.load_state_dict(state)
    assert list(again) == list(sampler)
    with pytest.raises(StateError, match="rank"):
        other.load_state_dict(state)
    with pytest.raises(StateError, match="seed"):
        make(num_replicas=2, rank=0, seed=6).load_state_dict(state)


# Compiled steps and other devices ------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Guards may run slower")  # torch's, about Python 3.13.0
def test_a_compiled_step_may_take_the_ticket() -> None:
    sampler = make()
    list(sampler)

    @torch.compile(backend="eager")
    def step(losses: Any, ticket: Any) -> Any:
        ticket.observe(2.0 * losses.detach())
        return ticket.mean(losses * 3.0)

    tickets = list(sampler.tickets())
    for ticket in tickets:
        losses = torch.arange(1.0, len(ticket) + 1.0)
        assert float(step(losses, ticket)) == pytest.approx(3.0 * float(losses.mean()))
    assert len(sampler._heard.waiting) == len(tickets)


def test_the_default_device_may_be_another_one() -> None:
    with torch.device("meta"):
        sampler = make()
        list(sampler)
        ticket = next(sampler.tickets())
        assert float(ticket.mean(torch.ones(B, device="cpu"))) == 1.0
        ticket.observe([1.0] * B)
        assert sampler.norms()[ticket.examples].tolist() == [1.0] * B


def test_the_diagnosis_of_norms_whose_squares_overflow() -> None:
    batches = loader(make())
    for _ in range(2):
        for (values,), ticket in batches:
            ticket.mean(values.double())
            ticket.observe(np.where(ticket.examples == 3, 1e200, NORMS[ticket.examples]))
    assert "provisional" not in diagnose(batches.sampler).sentence


# Losses that were not weighed ---------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
def test_who_learns_nothing_from_an_epoch_need_not_weigh_it(late: bool) -> None:
    """Nor is a state that was asked for a reply, nor one that came late, of an epoch that was weighed."""
    batches = loader(make())
    for _ in range(2):
        for (values,), ticket in batches:
            ticket.mean(values.double())
            if ticket.position > 0 or not late:
                ticket.observe(NORMS[ticket.examples])
            else:
                kept = ticket
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in batches:
            batches.state_dict()
        if late:
            kept.observe(NORMS[kept.examples])
        next(iter(batches))


@pytest.mark.parametrize("use", ["mean", "weights", "nothing"])
def test_who_learns_without_weighing_is_told_once(use: str) -> None:
    """When the loop has ended, so that it is not too late to know in a run of two epochs."""
    batches = loader(make())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):  # the second epoch has unequal weights
            for (values,), ticket in batches:
                ticket.observe(NORMS[ticket.examples])
                if use == "mean":
                    ticket.mean(values.double())
                if use == "weights":
                    assert len(ticket.weights) == len(values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(batches)
        list(batches)  # nothing was learnt from the third
    wanted = ["the losses of epoch 1 were not weighed"] if use == "nothing" else []
    assert [str(one.message).split(":")[0] for one in said] == wanted


@pytest.mark.filterwarnings("default:no norms")
@pytest.mark.parametrize("tickets", [False, True])
def test_who_observes_nothing_is_told_once(tickets: bool) -> None:
    """When the second epoch begins."""
    sampler = make()
    batches = loader(sampler) if tickets else sampler
    with pytest.warns(UserWarning, match="no norms were observed in the first epoch") as said:
        [list(batches) for _ in range(3)]
    assert len(said) == 1


@pytest.mark.filterwarnings("error:no norms")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_look_or_feedback_after_the_loop_is_no_mistake(workers: int) -> None:
    batches = loader(make(), workers)
    next(iter(batches))
    for _ in range(2):
        for ticket in [ticket for _, ticket in batches]:
            ticket.mean(torch.ones(len(ticket)))
            ticket.observe(NORMS[ticket.examples])


def test_a_state_of_an_epoch_that_is_not_used_goes_on_the_same_after_leave() -> None:
    batches, resumed = loader(make(prior=NORMS / NORMS.sum())), loader(make(prior=NORMS / NORMS.sum()))
    next(iter(batches))
    resumed.load_state_dict(batches.state_dict())
    for each in (batches, resumed):
        each.leave()
    assert given(list(batches)) == given(list(resumed))


# Epochs that were not used ------------------------------------------------------------------------------


def counts_with(between: Callable[[TicketLoader], object], epochs: int = 50) -> np.ndarray:
    """How much 200 examples count for an epoch, half of them with e = 1/2, and half with 3/2."""
    size = 200
    prior = np.where(np.arange(size) < size // 2, 0.5, 1.5) / size
    prior = (prior - 0.1 / size) / 0.9  # a tenth of uniform draws is mixed in
    sampler, counts = AdaptiveBatchSampler(size, 10, prior=prior), np.zeros(size)
    batches = TicketLoader(DataLoader(TensorDataset(torch.zeros(size)), batch_sampler=sampler))
    for _ in range(epochs):
        for _, ticket in batches:
            np.add.at(counts, ticket.examples, ticket.weights)
        between(batches)
    return counts / epochs


def test_a_look_at_a_batch_leaves_no_trace() -> None:
    """After every epoch: all counts are as without."""
    counts = counts_with(lambda batches: next(iter(batches)))
    assert np.abs(counts - 1.0).max() < 2.0 * 2.0 / 50 + 1e-9  # two weights of an example with e = 1/2


def one_more(batches: TicketLoader) -> None:
    for _, ticket in batches:
        assert len(ticket.weights)
        break


@pytest.mark.parametrize("between", [one_more, list])
def test_epochs_that_are_used_in_part_or_not_at_all_keep_no_step(
    between: Callable[[TicketLoader], object],
) -> None:
    """A batch that is weighed, or an evaluation, after every epoch: no example is left out."""
    counts = counts_with(between)
    # fresh starts: each epoch counts for 0 or 2 with e = 1/2, a deviation of 1 / sqrt(50)
    assert np.abs(counts - 1.0).max() < 4.5 / np.sqrt(50)
    assert counts[:100].mean() == pytest.approx(1.0, abs=0.02)


# The last batch -----------------------------------------------------------------------------------------


def test_drop_last_has_whole_batches_and_who_had_no_place_comes_next() -> None:
    whole, full = make(), make(drop_last=True)
    assert len(full) == len(whole) - 1 == 5
    counts = np.zeros(N, dtype=int)
    for done in range(1, 24):
        batches = list(full)
        assert [len(batch) for batch in batches] == [B] * 5
        assert all(ticket.weights == pytest.approx(1.0, rel=1e-12) for ticket in full.tickets())
        seen = np.bincount(list(chain(*batches)), minlength=N)
        assert seen.max() == 1
        counts += seen
        assert np.ptp(counts) <= 1
        assert counts.sum() == 20 * done
    assert len(make(drop_last=True, batch_size=N)) == 1
    with pytest.raises(StateError, match="drop_last"):
        whole.load_state_dict(full.state_dict())


# Arguments and states -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"num_examples": 0}, "num_examples"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"seed": -1}, "seed"),
        ({"prior": np.ones(N)}, "prior"),
        ({"prior": np.eye(N)[0]}, "prior"),
        ({"prior": [1.0]}, "prior"),
        ({"prior": ["a"] * N}, "prior"),
        ({"groups": [1, 2]}, "groups"),
        ({"groups": np.zeros(N)}, "groups"),
        ({"groups": [[1], [1, 2]]}, "groups"),
        ({"groups": ["a"] * (N - 1) + [None]}, "groups"),
        ({"num_replicas": N + 1, "rank": 0}, "num_replicas"),
        ({"num_replicas": 2, "rank": 2}, "rank"),
        ({"num_replicas": 2}, "rank must be given with num_replicas,"),  # every process would have rank 0
        ({"rank": 0}, "num_replicas must be given with rank,"),
        ({"drop_last": 1}, "drop_last"),
        ({"drop_last": True, "batch_size": N + 1}, "batch_size"),
        ({"shuffle": True}, "AdaptiveBatchSampler"),
    ],
)
def test_wrong_arguments_are_named(changes: dict[str, Any], argument: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{argument} "):
        make(**changes)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ([1.0, 0.0], "above 0 for every example.* got 0.0 for example 1$"),
        ([1.5, -0.5], "above 0 for every example.* got -0.5 for example 1$"),
        ([np.nan, 1.0], "above 0 for every example.* got nan for example 0$"),
        ([0.5, 0.25, 0.25], r"2 entries, one for each example, got shape \(3,\)$"),
        ([3.0, 5.0], "sum to one, got a sum of 8.0; divide it by its sum, in float32 or float64$"),
    ],
)
def test_a_wrong_prior_is_refused_in_words_of_examples(prior: list[float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^prior must .*{message}"):
        make(num_examples=2, prior=prior)


def test_wrong_losses_and_loaders_are_named() -> None:
    sampler = make()
    with pytest.raises(CohortError, match=r"^tickets "):
        next(sampler.tickets())
    list(sampler)
    ticket = next(sampler.tickets())
    for wrong in (
        torch.tensor(1.0),
        torch.ones(B + 1),
        [1.0] * B,
        np.ones(B),
        torch.ones(B, dtype=torch.int64),
    ):
        with pytest.raises(ConfigurationError, match=r"^losses .*reduction"):
            ticket.mean(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"^loader .*batch_sampler"):
        TicketLoader(DataLoader(DATA, batch_size=B))
    with pytest.raises(ConfigurationError, match=rf"^loader .*dataset of {N + 1} examples.*got {N}$"):
        loader(make(num_examples=N + 1))
    with pytest.raises(ConfigurationError, match=r"^loader .*in_order"):
        TicketLoader(DataLoader(DATA, batch_sampler=make(), in_order=False))


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "kind": lambda state: "EmpiricalBayesSampler",
    "version": lambda state: 0,
    "config.seed": lambda state: "6",
    "config.batch_size": lambda state: B + 1,
    "config.prior": lambda state: "crc32 00000000",
    "epochs_begun": lambda state: -1,
    "position": lambda state: 7,
    "phases": lambda state: state["phases"] + 0.1,
    "debts": lambda state: state["debts"] - 20.0,
    "means": lambda state: state["means"] + 1e300,
    "visits": lambda state: state["visits"].bfloat16(),
    "evidence": lambda state: state["evidence"] - 9.0,
    "moments": lambda state: state["moments"] / 0.0,
    "heard_examples": lambda state: state["heard_examples"] + N,
    "heard_weights": lambda state: -state["heard_weights"],
    "heard_norms": lambda state: -state["heard_norms"],
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_state_is_refused_without_a_trace(name: str) -> None:
    sampler = make()
    epoch(sampler)
    list(sampler)
    next(sampler.tickets()).observe(np.ones(B))
    state = sampler.state_dict()
    other = make()
    before = other.state_dict()
    with pytest.raises(StateError, match=name.removeprefix("config.")):
        other.load_state_dict({**state, name: CHANGES[name](state)})
    after = other.state_dict()
    assert all(np.array_equal(before[key], after[key]) for key in before)
    with pytest.raises(StateError):
        make(groups=np.zeros(N, dtype=int)).load_state_dict(state)
    with pytest.raises(StateError):
        other.load_state_dict({key: value for key, value in state.items() if key != name})


# Diagnosis ----------------------------------------------------------------------------------------------


def test_diagnose_after_the_first_epoch() -> None:
    alike, rare = (AdaptiveBatchSampler(1000, batch_size=10) for _ in range(2))
    with pytest.raises(ConfigurationError, match="after its first epoch"):
        diagnose(alike)
    epoch(alike, np.ones(1000))
    assert diagnose(alike).verdict == "nothing to gain"
    epoch(rare, np.where(np.arange(1000) < 10, 50.0, 1.0))
    found = diagnose(rare)
    assert found.verdict == "adaptive"
    assert "provisional" in found.sentence
    assert found.noise.ratio("adaptive") < 1.0
    assert "best possible" not in repr(found)  # what of a single norm is chance is not known
    page = re.sub(r"<(script|style).*?</\1>", "", found.page(), flags=re.DOTALL)
    for text in (repr(found), repr(diagnose(alike)), page):
        assert "1000 examples, batches of 10" in text
        for word in ("client", "cohort", "memory", "least K", "rounds"):
            assert word not in text
    assert {"num_examples": 1000, "batch_size": 10}.items() <= json.loads(found.json()).items()
    with pytest.raises(ConfigurationError, match=r"^cohort_size "):
        diagnose(rare, cohort_size=5)


def test_a_part_of_an_epoch_is_too_little_to_tell() -> None:
    """After a few batches all norms were alike, and a plain shuffle was recommended."""
    sampler = AdaptiveBatchSampler(1000, batch_size=10)
    tickets, norms = None, np.where(np.arange(1000) % 2, 50.0, 1.0)
    for count, batch in enumerate(sampler, start=1):
        tickets = tickets or sampler.tickets()
        next(tickets).observe(norms[batch])
        found = diagnose(sampler)
        if count == 49:
            assert found.verdict == "can't tell yet"
            assert "only 49% of the examples were observed. Ask again after the first epoch." in repr(found)
            assert "provisional" not in repr(found)
        if count == 50:
            assert found.verdict == "adaptive"
            break


def test_a_loader_is_diagnosed_as_its_sampler() -> None:
    batches = loader(make())
    for (values,), ticket in chain(batches, batches):
        ticket.mean(values.double())
        ticket.observe(NORMS[ticket.examples])
    assert repr(diagnose(batches)) == repr(diagnose(batches.sampler))
    assert "a plain shuffle is as fast or faster" in repr(diagnose(batches))


def test_later_epochs_are_judged_by_norms_that_their_draws_did_not_know() -> None:
    """Norms by chance alone: nothing is gained, though the norms that p was learnt from say so."""
    rng = np.random.default_rng(1)
    sampler, batch = AdaptiveBatchSampler(2000, batch_size=10), 10
    epoch(sampler, rng.lognormal(size=2000))
    assert diagnose(sampler).verdict == "adaptive"
    norms = rng.lognormal(size=2000)
    drawn = epoch(sampler, norms)
    found = diagnose(sampler)
    assert "provisional" not in found.sentence
    assert found.verdict == "nothing to gain"
    assert re.search(r"adaptive batches have 1\.\d\d times the variance.*Use a plain shuffle", found.sentence)
    assert "best possible" not in repr(found)
    g = norms[[example for batch, _ in drawn for example in batch]]
    w = np.array([weight for _, weights in drawn for weight in weights])
    uniform, own = np.mean(w * g**2), np.mean((w * g) ** 2)
    assert found.noise.ratio("adaptive", "replacing") == pytest.approx(own / uniform / (1.0 - batch / 2000))
    least = uniform / 2000
    assert found.noise.ratio("adaptive") == pytest.approx((own / batch - least) / (uniform / batch - least))
    assert own > uniform
    again = AdaptiveBatchSampler(2000, batch_size=10)
    again.load_state_dict(sampler.state_dict())
    assert repr(diagnose(again)) == repr(found)


@pytest.mark.parametrize("batches", [0, 1, 5])
@pytest.mark.parametrize("chance", [False, True])
def test_early_in_an_epoch_the_verdict_is_that_of_the_epoch_before(chance: bool, batches: int) -> None:
    rng = np.random.default_rng(1)
    sampler, same = AdaptiveBatchSampler(2000, batch_size=10), rng.lognormal(size=2000)
    for _ in range(2):
        epoch(sampler, rng.lognormal(size=2000) if chance else same)
    before = diagnose(sampler)
    assert before.verdict == ("nothing to gain" if chance else "adaptive")
    list(sampler)
    for ticket in islice(sampler.tickets(), batches):
        ticket.observe(same[ticket.examples])
    assert repr(diagnose(sampler)) == repr(before)
    again = AdaptiveBatchSampler(2000, batch_size=10)
    again.load_state_dict(sampler.state_dict())
    assert repr(diagnose(again)) == repr(before)


def test_equal_norms_are_known_to_be_equal_after_two_epochs() -> None:
    sampler = make()
    epoch(sampler, np.ones(N))
    assert "provisional" in diagnose(sampler).sentence
    epoch(sampler, np.ones(N))
    found = diagnose(sampler)
    assert found.verdict == "nothing to gain"
    assert "provisional" not in found.sentence
    assert found.noise.ratio("adaptive") == 1.0


def test_who_knows_the_norms_is_judged_by_them_on_a_rank_too() -> None:
    norms = np.where(np.arange(1001) < 10, 50.0, 1.0)
    sampler = AdaptiveBatchSampler(1001, batch_size=10, num_replicas=2, rank=1)
    for _ in range(5):
        epoch(sampler, norms)
    p = sampler.probabilities()
    own = norms[p > 0.0] ** 2
    truth = (own / p[p > 0.0]).sum() / (len(own) * own.sum())
    found = diagnose(sampler).noise.ratio("adaptive", "replacing") * (1.0 - 10 / 500)
    assert found == pytest.approx(truth, rel=0.05)  # p hardly moves by now
    assert "500 examples, batches of 10" in repr(diagnose(sampler))


def test_expected_copies_are_those_of_the_formula() -> None:
    """Of a rank, too: as many draws as the largest shard has examples."""
    sampler = make(num_replicas=2, rank=1)
    epoch(sampler)
    p = sampler.probabilities()
    own = p > 0.0
    assert expected_copies(p[own], 12).sum() == pytest.approx(12.0)
    assert own.sum() == 11
