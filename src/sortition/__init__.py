"""Sortition: which clients of a federation train in each round, learnt from the norms of their updates.

The names below are imported when they are first used, so that ``import sortition`` is immediate: numba, which
the samplers need, takes most of half a second.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sortition.core.cohort import Cohort
    from sortition.core.errors import (
        AvailabilityError,
        CohortError,
        ConfigurationError,
        FeedbackError,
        LedgerError,
        SortitionError,
        StateError,
    )
    from sortition.core.guard_settings import Guard
    from sortition.core.protocols import Sampler
    from sortition.lab.diagnosis.diagnose import diagnose
    from sortition.memory import Memory
    from sortition.samplers.avare import AvareSampler
    from sortition.samplers.dense import DenseSampler
    from sortition.samplers.empirical_bayes import EmpiricalBayesSampler, default_sampler
    from sortition.samplers.kvib import KVibSampler
    from sortition.samplers.mabs import MABSSampler
    from sortition.samplers.oracles import OptimalClientSampler, OptimalSampler
    from sortition.samplers.osmd import AdaptiveOSMDSampler, DoublingOSMDSampler, OSMDSampler
    from sortition.samplers.portfolio import PortfolioSampler
    from sortition.samplers.privacy import NormPrivacy
    from sortition.samplers.static import FixedSampler, ProportionalSampler, UniformSampler
    from sortition.samplers.vrb import VRBSampler

__version__ = "0.2.0"

__all__ = [
    "AdaptiveOSMDSampler",
    "AvailabilityError",
    "AvareSampler",
    "Cohort",
    "CohortError",
    "ConfigurationError",
    "DenseSampler",
    "DoublingOSMDSampler",
    "EmpiricalBayesSampler",
    "FeedbackError",
    "FixedSampler",
    "Guard",
    "KVibSampler",
    "LedgerError",
    "MABSSampler",
    "Memory",
    "NormPrivacy",
    "OSMDSampler",
    "OptimalClientSampler",
    "OptimalSampler",
    "PortfolioSampler",
    "ProportionalSampler",
    "Sampler",
    "SortitionError",
    "StateError",
    "UniformSampler",
    "VRBSampler",
    "default_sampler",
    "diagnose",
]

_HOME = {
    "AdaptiveOSMDSampler": "sortition.samplers.osmd",
    "AvailabilityError": "sortition.core.errors",
    "AvareSampler": "sortition.samplers.avare",
    "Cohort": "sortition.core.cohort",
    "CohortError": "sortition.core.errors",
    "ConfigurationError": "sortition.core.errors",
    "DenseSampler": "sortition.samplers.dense",
    "DoublingOSMDSampler": "sortition.samplers.osmd",
    "EmpiricalBayesSampler": "sortition.samplers.empirical_bayes",
    "FeedbackError": "sortition.core.errors",
    "FixedSampler": "sortition.samplers.static",
    "Guard": "sortition.core.guard_settings",
    "KVibSampler": "sortition.samplers.kvib",
    "LedgerError": "sortition.core.errors",
    "MABSSampler": "sortition.samplers.mabs",
    "Memory": "sortition.memory",
    "NormPrivacy": "sortition.samplers.privacy",
    "OSMDSampler": "sortition.samplers.osmd",
    "OptimalClientSampler": "sortition.samplers.oracles",
    "OptimalSampler": "sortition.samplers.oracles",
    "PortfolioSampler": "sortition.samplers.portfolio",
    "ProportionalSampler": "sortition.samplers.static",
    "Sampler": "sortition.core.protocols",
    "SortitionError": "sortition.core.errors",
    "StateError": "sortition.core.errors",
    "UniformSampler": "sortition.samplers.static",
    "VRBSampler": "sortition.samplers.vrb",
    "default_sampler": "sortition.samplers.empirical_bayes",
    "diagnose": "sortition.lab.diagnosis.diagnose",
}
"""Where each public name lives."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sortition' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
