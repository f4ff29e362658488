"""What somebody who sees the probabilities, the pages or the terminal learns about a private norm."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from sortition import AvareSampler, Cohort, NormPrivacy, PortfolioSampler, default_sampler
from sortition.integrations.flower import AdaptiveSampling
from sortition.samplers.privacy import GRID, Noise
from tests.integrations.flower.conftest import task_identity  # noqa: F401  a fixture
from tests.integrations.flower.fake_grid import Client, federation, model


@pytest.mark.parametrize("bound", [1.0, 0.3, 7e-5])
@pytest.mark.parametrize("norm", [0.0, 0.1, 0.5, 1.0])
def test_noised_norms_lie_on_one_grid_whatever_the_norm(bound: float, norm: float) -> None:
    """A float plus a float shows in its last bits what was added: 0 could be told from anything else."""
    ones = np.ones(200)
    cohort = Cohort(0, 200, np.arange(200), ones.astype(int), ones, ones)
    noised = Noise(NormPrivacy(bound, 1.0), seed=0).apply(cohort, np.full(200, norm * bound))
    step = bound / GRID
    assert np.array_equal(noised, np.rint(noised / step) * step)
    assert len(set(noised)) > 50


def test_probabilities_show_nothing_but_the_grid() -> None:
    """From Avare's probabilities the noised norms can be computed: they are whole steps of the grid."""
    sampler = AvareSampler(
        num_clients=6, cohort_size=6, floor_offset=1e6, design="fixed_size", privacy=NormPrivacy(1.0, 0.01)
    )
    cohort = sampler.draw()
    sampler.observe(cohort, np.linspace(0.5, 1.0, 6))
    p = sampler.probabilities()
    numbers = np.arange(1, 2 * GRID)  # the first client's noised norm is one of these
    fits = [np.abs(numbers * ratio - np.rint(numbers * ratio)) < 1e-5 for ratio in p / p[0]]
    assert np.any(np.all(fits, axis=0))


def test_a_private_portfolio_does_not_show_the_seed_by_its_experts() -> None:
    experts = [AvareSampler(num_clients=6, cohort_size=2, seed=987654321) for _ in range(2)]
    private = PortfolioSampler(experts=experts, seed=987654321, privacy=NormPrivacy(1.0, 2.0))
    assert "987654321" not in repr(private)
    assert "seed=987654321" in repr(PortfolioSampler(experts=experts, seed=987654321))


def published(length: float, memory: bool, caplog: pytest.LogCaptureFixture) -> list[object]:
    """All that a Flower run with private norms shows, if the last client's updates have this length."""

    def client(length: float) -> Client:
        return Client(train=lambda arrays, server_round: {"w": arrays["w"] + length})

    privacy = NormPrivacy(1.0, 2.0, fresh_noise=False)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="flwr"):
        strategy = AdaptiveSampling(
            FedAvg(fraction_evaluate=0.0),
            sampler=default_sampler(8, 3, privacy=privacy, seed=2),
            memory=memory,
        )
        result = strategy.start(
            federation([client(2.0) for _ in range(7)] + [client(length)]), model(0.0), num_rounds=12
        )
    lines = [line for line in caplog.messages if not line.startswith("Finished in")]
    return [dict(metrics) for metrics in result.train_metrics_clientapp.values()] + lines


@pytest.mark.parametrize("memory", [False, True])
def test_a_flower_run_publishes_nothing_that_depends_on_a_private_norm(memory, caplog) -> None:
    """Norms are clipped at 1, so that 2, 1e3 and 1e9 are one norm: nothing may tell them apart.

    With a memory a norm is that of a change, which there is none of if the update of 2 is never made shorter.
    """
    shown = [published(length, memory, caplog) for length in (200.0 if memory else 2.0, 1e3, 1e9)]
    assert len(shown[0]) > 12
    assert shown[0] == shown[1] == shown[2]
