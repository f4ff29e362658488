"""The rivals by name: how each is made, what its paper is, what it needs, and whether it is unbiased."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sortition.core.protocols import Sampler
from sortition.lab.client_memory import UpdateMemory
from sortition.lab.contestants import Trial
from sortition.lab.rivals.chosen import OortSampler, PowerOfChoiceSampler
from sortition.lab.rivals.clustered import ClusteredBySimilaritySampler, ClusteredBySizeSampler
from sortition.lab.rivals.combining import MIFA, FedAU, FedVARP
from sortition.lab.rivals.secure_sampling import SecureOptimalSampler
from sortition.lab.rivals.subsets import UniformSubsetSampler


class Contender(NamedTuple):
    """What plays a run: who draws, and what combines the updates."""

    sampler: Sampler
    memory: UpdateMemory | None = None
    """The ``memory`` of an algorithm; None for the plain aggregate."""


@dataclass(frozen=True)
class Rival:
    """A published way to choose clients or to combine their updates."""

    make: Callable[[Trial, int], Contender]
    """From a trial and the number of the model's parameters, for one run."""
    paper: str
    unbiased: bool
    needs: str = ""
    """What it needs beside norms: "losses before" (ask), "losses after" (hear), "all norms" (reveal)."""


def _common(trial: Trial) -> dict[str, Any]:
    """What every rival takes: they have designs of their own."""
    return {name: value for name, value in trial.common().items() if name != "design"}


def _similarity(trial: Trial, num_parameters: int) -> Contender:
    sampler = ClusteredBySimilaritySampler(**_common(trial), num_parameters=num_parameters)
    return Contender(sampler, sampler)


RIVALS: dict[str, Rival] = {
    "uniform-subset": Rival(
        lambda trial, _: Contender(UniformSubsetSampler(**_common(trial))),
        "McMahan et al. 2017, Algorithm 1",
        unbiased=True,
    ),
    "clustered-size": Rival(
        lambda trial, _: Contender(ClusteredBySizeSampler(**_common(trial))),
        "Fraboni et al. 2021, Algorithm 1",
        unbiased=True,
    ),
    "clustered-similarity": Rival(_similarity, "Fraboni et al. 2021, Algorithm 2", unbiased=True),
    "fedvarp": Rival(
        lambda trial, size: Contender(UniformSubsetSampler(**_common(trial)), FedVARP(num_parameters=size)),
        "Jhunjhunwala et al. 2022, Algorithm 1",
        unbiased=True,
    ),
    "aocs": Rival(
        lambda trial, _: Contender(SecureOptimalSampler(**_common(trial))),
        "Chen, Horvath and Richtarik 2022, Algorithm 2",
        unbiased=True,
        needs="all norms",
    ),
    "mifa": Rival(
        lambda trial, size: Contender(UniformSubsetSampler(**_common(trial)), MIFA(num_parameters=size)),
        "Gu et al. 2021, Algorithm 1",
        unbiased=False,
    ),
    "fedau": Rival(
        lambda trial, _: Contender(
            UniformSubsetSampler(**_common(trial)), FedAU(num_clients=len(trial.client_weights))
        ),
        "Wang and Ji 2024, Algorithms 1 and 2",
        unbiased=False,
    ),
    "power-of-choice": Rival(
        lambda trial, _: Contender(PowerOfChoiceSampler(**_common(trial))),
        "Cho, Wang and Joshi 2022, strategy pow-d",
        unbiased=False,
        needs="losses before",
    ),
    "oort": Rival(
        lambda trial, _: Contender(OortSampler(**_common(trial))),
        "Lai et al. 2021, Algorithm 1",
        unbiased=False,
        needs="losses after",
    ),
}
"""The unbiased first. AOCS trains everybody in every round, and so is no rival where trainings count."""
