"""Two real processes, which train one model with DistributedDataParallel on loopback."""

from __future__ import annotations

import os
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

from sortition import ConfigurationError  # noqa: E402
from sortition.integrations.torch import AdaptiveBatchSampler, TicketLoader  # noqa: E402

RANKS, N, B, EPOCHS, SAVED_AT = 2, 23, 4, 3, 4
BATCHES = 3
"""Of each rank in an epoch: 12 draws, also of rank 1, which has 11 examples."""


def examples() -> Any:
    """Rows of very different lengths, and what to predict from them."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    rows *= torch.exp(torch.randn(N, 1, generator=generator, dtype=torch.float64))
    return torch.utils.data.TensorDataset(rows, rows.sum(dim=1) + 1.0)


def linear() -> Any:
    torch.manual_seed(2)
    return torch.nn.Linear(3, 1, dtype=torch.float64)


def losses_of(model: Any, rows: Any, targets: Any) -> Any:
    return 0.5 * (model(rows)[:, 0] - targets) ** 2


def train(rank: int, folder: Path) -> None:
    """One rank: what it drew, what it told, its gradients; and the same again from a state in mid-epoch."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    early, placed = AdaptiveBatchSampler(N, B), AdaptiveBatchSampler(N, B, num_replicas=RANKS, rank=rank)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    with pytest.raises(
        ConfigurationError, match=r"those of torch.distributed, \(2, \d\), got \(1, 0\): build"
    ):
        next(iter(early))
    next(iter(placed))
    model = torch.nn.parallel.DistributedDataParallel(linear())

    def loader() -> TicketLoader:
        sampler = AdaptiveBatchSampler(N, B, seed=5)  # the ranks come from torch.distributed
        return TicketLoader(torch.utils.data.DataLoader(examples(), batch_sampler=sampler))

    batches, steps, state = loader(), [], None
    for (rows, targets), ticket in chain(*(batches for _ in range(EPOCHS))):
        losses = losses_of(model, rows, targets)
        norms = (2.0 * losses.detach()).sqrt() * rows.norm(dim=1)
        ticket.observe(norms)
        model.zero_grad()
        ticket.mean(losses).backward()
        gradients = [each.grad.clone() for each in model.parameters()]
        steps.append(
            {
                "examples": ticket.examples.tolist(),
                "weights": ticket.weights.tolist(),
                "norms": norms.tolist(),
                "gradients": gradients,
            }
        )
        with torch.no_grad():
            for each in model.parameters():
                each -= 0.01 * each.grad
        if len(steps) == SAVED_AT:
            state = batches.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    norms_at = iter(steps[SAVED_AT:])
    again = []
    for _, ticket in islice(chain(*(resumed for _ in range(EPOCHS))), RANKS * BATCHES - 1):
        ticket.observe(next(norms_at)["norms"])
        again.append((ticket.examples.tolist(), ticket.weights.tolist()))
    torch.save({"steps": steps, "again": again}, folder / f"{rank}.pt")
    del model, losses  # torch may hang where a model is the last one to let go of the process group
    torch.distributed.barrier()  # nobody closes what the other one still waits for
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the ranks saved."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(train, args=(folder,), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def drawn(rank: Any) -> list[set[int]]:
    """The examples of each epoch."""
    batches = [step["examples"] for step in rank["steps"]]
    return [set(chain(*batches[k * BATCHES : (k + 1) * BATCHES])) for k in range(EPOCHS)]


def test_shards_are_disjoint_and_the_first_epoch_is_all_examples(found: list[Any]) -> None:
    epochs = [drawn(rank) for rank in found]
    assert all(len(rank) == EPOCHS for rank in epochs)
    whole = [set.union(*rank) for rank in epochs]
    assert not whole[0] & whole[1]
    assert epochs[0][0] | epochs[1][0] == set(range(N))


def test_each_rank_has_the_batches_and_weights_of_a_sampler_that_is_told_its_rank(found: list[Any]) -> None:
    """Every rank knows its own p without a word from the others."""
    for rank, own in enumerate(found):
        sampler = AdaptiveBatchSampler(N, B, seed=5, num_replicas=RANKS, rank=rank)
        steps = iter(own["steps"])
        for epoch in range(EPOCHS):
            p = sampler.probabilities()
            assert p.sum() == pytest.approx(1.0)
            for batch, ticket in zip(list(sampler), list(sampler.tickets()), strict=True):
                step = next(steps)
                assert batch == step["examples"]
                assert ticket.weights.tolist() == step["weights"]
                if epoch == 0:  # later something is owed from the epochs before
                    assert step["weights"] == pytest.approx(RANKS / (N * p[batch]))
                ticket.observe(step["norms"])
            assert (p[p > 0.0].std() > 1e-3) == (epoch > 0)


def test_the_gradient_of_all_ranks_is_the_weighted_mean(found: list[Any]) -> None:
    """Of both ranks' batches, to rounding, with a model that follows the same steps in one process."""
    rows, targets = examples().tensors
    model = linear()
    for steps in zip(*(rank["steps"] for rank in found), strict=True):
        model.zero_grad()
        for step in steps:
            losses = losses_of(model, rows[step["examples"]], targets[step["examples"]])
            weights = torch.tensor(step["weights"], dtype=torch.float64)
            ((losses * weights).mean() / RANKS).backward()
        for parameter, *gradients in zip(
            model.parameters(), *(step["gradients"] for step in steps), strict=True
        ):
            for gradient in gradients:  # the same on every rank
                torch.testing.assert_close(gradient, parameter.grad)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad


def test_each_rank_resumes_in_mid_epoch_to_the_bit(found: list[Any]) -> None:
    for own in found:
        unbroken = [(step["examples"], step["weights"]) for step in own["steps"][SAVED_AT:]]
        assert len(unbroken) == 5
        assert own["again"] == unbroken
