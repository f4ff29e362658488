"""Strategies that can't be combined with adaptive sampling are refused, by name and with the reason."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi

from sortition import ConfigurationError, UniformSampler
from sortition.integrations.flower import AdaptiveSampling
from tests.integrations.flower.fake_grid import Client, federation, model


@pytest.mark.parametrize("kind", [FedAvg, FedAdam, FedAvgM, FedProx, FedYogi, FedAdagrad])
def test_these_are_welcome(kind):
    assert isinstance(AdaptiveSampling(kind(), cohort_size=2).inner, kind)


def test_a_subclass_of_these_is_welcome():
    class Logging(FedAvg):
        pass

    AdaptiveSampling(Logging(), cohort_size=2)


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        (flower.FedMedian(), "compares the replies"),
        (flower.FedTrimmedAvg(), "compares the replies"),
        (flower.Krum(), "compares the replies"),
        (flower.MultiKrum(num_malicious_nodes=0, num_nodes_to_select=1), "compares the replies"),
        (flower.Bulyan(), "compares the replies"),
        (flower.QFedAvg(client_learning_rate=0.1), "losses"),
        (flower.FedXgbBagging(), "trees"),
        (flower.FedXgbCyclic(), "chooses the clients itself"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_those_that_need_the_replies_one_by_one_are_refused(inner, reason):
    with pytest.raises(ConfigurationError, match=f"inner must not be {type(inner).__name__}: .*{reason}"):
        AdaptiveSampling(inner, cohort_size=2)


def test_a_subclass_of_a_refused_one_is_refused_too():
    class MyMedian(flower.FedMedian):
        pass

    with pytest.raises(ConfigurationError, match=r"inner must not be MyMedian \(a FedMedian\)"):
        AdaptiveSampling(MyMedian(), cohort_size=2)


def private_wrappers(inner):
    """All four wrappers around this strategy."""
    return [
        flower.DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 1.0, 100),
        flower.DifferentialPrivacyClientSideFixedClipping(inner, 1.0, 1.0, 100),
        flower.DifferentialPrivacyServerSideAdaptiveClipping(inner, 1.0, 100),
        flower.DifferentialPrivacyClientSideAdaptiveClipping(inner, 1.0, 100),
    ]


@pytest.mark.parametrize("place", range(4))
def test_differential_privacy_inside_is_refused(place):
    wrapped = private_wrappers(FedAvg())[place]
    with pytest.raises(ConfigurationError, match=f"must not be {type(wrapped).__name__}: its noise"):
        AdaptiveSampling(wrapped, cohort_size=2)


@pytest.mark.parametrize("place", range(4))
def test_differential_privacy_outside_is_refused_before_anything_is_sent(place):
    grid = federation([Client(), Client()])
    wrapper = private_wrappers(AdaptiveSampling(FedAvg(), cohort_size=2))[place]
    with pytest.raises(ConfigurationError, match=f"{type(wrapper).__name__} must not wrap .*: its noise"):
        wrapper.start(grid, model(0.0), num_rounds=1)
    assert grid.sent == []


@pytest.mark.parametrize("place", range(4))
def test_differential_privacy_outside_is_refused_round_by_round_too(place):
    wrapper = private_wrappers(AdaptiveSampling(FedAvg(), cohort_size=2))[place]
    with pytest.raises(ConfigurationError, match="must not wrap AdaptiveSampling"):
        wrapper.configure_train(1, model(0.0), ConfigRecord(), federation([Client(), Client()]))


def test_a_strategy_of_another_kind_is_refused():
    inner = AdaptiveSampling(FedAvg(), cohort_size=2)
    with pytest.raises(ConfigurationError, match=r"inner must be FedAvg, .* got AdaptiveSampling"):
        AdaptiveSampling(inner, cohort_size=2)


def test_a_fraction_is_refused_since_the_sampler_decides():
    with pytest.raises(ConfigurationError, match=r"fraction_train = 1\.0, .* got 0\.1"):
        AdaptiveSampling(FedAvg(fraction_train=0.1), cohort_size=2)


def test_a_cohort_size_or_a_sampler_but_not_both():
    with pytest.raises(ConfigurationError, match="got neither"):
        AdaptiveSampling(FedAvg())
    sampler = UniformSampler(num_clients=3, cohort_size=2)
    with pytest.raises(ConfigurationError, match="got both"):
        AdaptiveSampling(FedAvg(), cohort_size=2, sampler=sampler)


def test_a_sampler_with_client_weights_of_its_own_is_refused():
    sampler = UniformSampler(num_clients=2, cohort_size=2, client_weights=np.array([0.1, 0.9]))
    with pytest.raises(ConfigurationError, match="built without client_weights"):
        AdaptiveSampling(FedAvg(), sampler=sampler)


def test_what_is_no_sampler_is_refused():
    with pytest.raises(ConfigurationError, match="sampler must be a sampler, got 'uniform'"):
        AdaptiveSampling(FedAvg(), sampler="uniform")


@pytest.mark.parametrize("size", [-1, "many", None, float("inf")])
def test_sizes_that_make_no_sense_are_refused(size):
    with pytest.raises(ConfigurationError, match=rf"num_examples .* got {size!r} for 'name:a'"):
        AdaptiveSampling(FedAvg(), cohort_size=2, num_examples={"name:a": size})


def test_sizes_without_names_are_refused():
    with pytest.raises(ConfigurationError, match=r"num_examples must map .* got \[1, 2\]"):
        AdaptiveSampling(FedAvg(), cohort_size=2, num_examples=[1, 2])
