"""Every public call shows its keywords, and corrects a wrong one; a sampler says what it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sortition
from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    Cohort,
    ConfigurationError,
    DenseSampler,
    Guard,
    KVibSampler,
    MABSSampler,
    NormPrivacy,
    OSMDSampler,
    PortfolioSampler,
    Sampler,
    UniformSampler,
    default_sampler,
)
from sortition.core.types import FloatArray
from sortition.samplers.base import BaseSampler
from tests.helpers import norms_for, same_cohort

M, K = 6, 3
PUBLIC = {name: getattr(sortition, name) for name in sortition.__all__}
CALLS = {name: call for name, call in PUBLIC.items() if callable(call) and call is not Sampler}
KINDS: dict[str, type[BaseSampler]] = {
    name: kind for name, kind in PUBLIC.items() if isinstance(kind, type) and issubclass(kind, BaseSampler)
}
NEEDED: dict[str, dict[str, Any]] = {
    "AdaptiveOSMDSampler": {"num_rounds": 20},
    "FixedSampler": {"probabilities": np.arange(1.0, M + 1.0) / 21.0},
    "KVibSampler": {"num_rounds": 20},
    "MABSSampler": {"num_rounds": 20},
    "OSMDSampler": {"learning_rate": 0.01},
}
CONCRETE = sorted(KINDS.keys() - {"DenseSampler"})


def build(name: str, **changes: Any) -> BaseSampler:
    """A sampler of the class called ``name``, at its defaults where possible."""
    common = {"num_clients": M, "cohort_size": K}
    if name == "PortfolioSampler":
        return PortfolioSampler(experts=[AvareSampler(**common), UniformSampler(**common)], **changes)
    return KINDS[name](**{**common, **NEEDED.get(name, {}), **changes})


def rounds(sampler: Any) -> list[Cohort]:
    drawn = []
    for _ in range(8):
        if hasattr(sampler, "reveal"):
            sampler.reveal(1.0 + np.arange(M))
        cohort = sampler.draw()
        sampler.observe(cohort, norms_for(cohort))
        drawn.append(cohort)
    return drawn


# Signatures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_every_keyword_is_written_out_with_its_type(name: str) -> None:
    """No ``*args`` or ``**kwargs``; exceptions take what Python's own take."""
    call = CALLS[name]
    if isinstance(call, type) and issubclass(call, Exception):
        assert "__init__" not in vars(call)
        return
    signature = inspect.signature(call)
    assert signature.parameters
    for parameter in signature.parameters.values():
        assert parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL), parameter
        assert parameter.annotation is not parameter.empty, f"{parameter.name} has no type"


@pytest.mark.parametrize("name", KINDS)
def test_methods_of_samplers_have_types(name: str) -> None:
    for method_name, method in inspect.getmembers(KINDS[name], inspect.isfunction):
        if method_name.startswith("_"):
            continue
        signature = inspect.signature(method)
        assert signature.return_annotation is not signature.empty, method_name
        for parameter in list(signature.parameters.values())[1:]:
            assert parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL), method_name
            assert parameter.annotation is not parameter.empty, f"{method_name}: {parameter.name}"


@pytest.mark.parametrize("name", CONCRETE)
def test_settings_are_the_keywords_of_the_constructor(name: str) -> None:
    assert build(name).settings.keys() == inspect.signature(KINDS[name]).parameters.keys()


@pytest.mark.parametrize("name", CONCRETE)
def test_settings_build_the_sampler_again(name: str) -> None:
    """Also with settings that are not the defaults."""
    weights = np.array([0.3, 0.2, 0.2, 0.1, 0.1, 0.1])
    changes: dict[str, Any] = {"seed": 7, "guard": Guard(clip_factor=8.0, largest_gain=4)}
    if name == "PortfolioSampler":
        changes["meta_rate"] = 0.5
    else:
        changes["client_weights"] = weights
    if "exploration" in inspect.signature(KINDS[name]).parameters:
        changes["exploration"] = 0.7
    sampler = build(name, **changes)
    given = dict(sampler.settings)
    for setting, value in changes.items():
        assert np.array_equal(given[setting], value)
    if name == "PortfolioSampler":  # it has its experts, which another portfolio can't have, too
        given["experts"] = [type(expert)(**expert.settings) for expert in given["experts"]]
    again = type(sampler)(**given)
    for one, other in zip(rounds(sampler), rounds(again), strict=True):
        assert same_cohort(one, other)


# Wrong keywords -----------------------------------------------------------------------------------------


def assert_corrected(call: Callable[[], object], called: str, wrong: str, right: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        call()
    message = str(caught.value)
    assert all(f"{word}" in message for word in (called, repr(wrong), repr(right))), message


@pytest.mark.parametrize("name", [name for name in CONCRETE if name != "PortfolioSampler"])
def test_a_misspelt_keyword_is_corrected_by_the_class_that_was_called(name: str) -> None:
    needed = {**NEEDED.get(name, {}), "num_client": M, "cohort_size": K}
    assert_corrected(lambda: KINDS[name](**needed), name, "num_client", "num_clients")
    assert_corrected(lambda: build(name, sede=3), name, "sede", "seed")


def test_a_misspelt_keyword_of_a_portfolio_and_of_the_default_sampler() -> None:
    expert = UniformSampler(num_clients=M, cohort_size=K)
    wrong: dict[str, Any] = {"expert": [expert]}
    assert_corrected(lambda: PortfolioSampler(**wrong), "PortfolioSampler", "expert", "experts")
    assert_corrected(
        lambda: default_sampler(num_client=M, cohort_size=K),  # type: ignore[call-arg]
        "default_sampler",
        "num_client",
        "num_clients",
    )


WITH_EXPLORATION = [name for name in CONCRETE if "exploration" in inspect.signature(KINDS[name]).parameters]


@pytest.mark.parametrize("name", WITH_EXPLORATION)
def test_a_symbol_of_the_paper_is_translated(name: str) -> None:
    assert_corrected(lambda: build(name, alpha=0.4), name, "alpha", "exploration")


def test_other_symbols_of_the_paper() -> None:
    assert {OSMDSampler, AdaptiveOSMDSampler, MABSSampler, KVibSampler} <= {
        KINDS[name] for name in WITH_EXPLORATION
    }
    assert_corrected(lambda: build("OSMDSampler", eta=0.1), "OSMDSampler", "eta", "learning_rate")
    assert_corrected(lambda: build("KVibSampler", T=9), "KVibSampler", "T", "num_rounds")
    assert_corrected(lambda: build("UniformSampler", M=9), "UniformSampler", "M", "num_clients")


def test_a_keyword_that_is_like_no_other_is_answered_with_all_of_them() -> None:
    with pytest.raises(ConfigurationError, match=r"UniformSampler.*'alpha'.*num_clients.*cohort_size.*seed"):
        build("UniformSampler", alpha=0.4)


class Doubled(DenseSampler):
    """A sampler of one's own, with a keyword of its own."""

    def __init__(self, *, num_clients: int, cohort_size: int, strength: float = 1.0, seed: int = 0) -> None:
        super().__init__(num_clients, cohort_size, seed=seed)
        self.settings |= {"strength": strength}

    def masses(self) -> FloatArray:
        return np.ones(self.num_clients)

    def update(self, cohort: Cohort, contributions: FloatArray) -> None:
        """Nothing is learnt."""


def test_a_sampler_of_ones_own_corrects_keywords_too() -> None:
    wrong: dict[str, Any] = {"num_clients": M, "cohort_size": K, "strenght": 2.0}
    assert_corrected(lambda: Doubled(**wrong), "Doubled", "strenght", "strength")


# repr ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONCRETE)
def test_repr_says_class_settings_and_rounds(name: str) -> None:
    sampler = build(name, seed=4711)
    assert name in repr(sampler)
    assert "0 rounds" in repr(sampler)
    rounds(sampler)
    assert "8 rounds" in repr(sampler)
    for setting, value in sampler.settings.items():
        if value is not None:
            assert f"{setting}=" in repr(sampler)
    assert "seed=4711" in repr(sampler)


def test_repr_of_a_large_federation_is_short() -> None:
    sampler = UniformSampler(num_clients=5000, cohort_size=2, client_weights=np.full(5000, 1 / 5000))
    assert "num_clients=5000" in repr(sampler)
    assert len(repr(sampler)) < 300


def test_repr_does_not_give_the_seed_away_with_privacy() -> None:
    """With fresh_noise=False the seed tells the noise."""
    private = NormPrivacy(norm_bound=1.0, noise_multiplier=1.0, fresh_noise=False)
    sampler = UniformSampler(num_clients=M, cohort_size=K, seed=4711, privacy=private)
    assert "4711" not in repr(sampler)
    assert "seed" not in repr(sampler)
    assert "privacy=" in repr(sampler)
