"""Sortition: which clients of a federation train in each round, learnt from the norms of their updates."""

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
from sortition.core.protocols import Sampler
from sortition.samplers.adaptive import AdaptiveOSMDSampler
from sortition.samplers.avare import AvareSampler
from sortition.samplers.default import default_sampler
from sortition.samplers.doubling import DoublingOSMDSampler
from sortition.samplers.empirical_bayes import EmpiricalBayesSampler
from sortition.samplers.fixed import FixedSampler, ProportionalSampler
from sortition.samplers.guard import Guard
from sortition.samplers.kvib import KVibSampler
from sortition.samplers.mabs import MABSSampler
from sortition.samplers.ocs import OptimalClientSampler
from sortition.samplers.optimal import OptimalSampler
from sortition.samplers.osmd import OSMDSampler
from sortition.samplers.portfolio import PortfolioSampler
from sortition.samplers.privacy import NormPrivacy
from sortition.samplers.uniform import UniformSampler
from sortition.samplers.vrb import VRBSampler

__version__ = "0.1.0"

__all__ = [
    "AdaptiveOSMDSampler",
    "AvailabilityError",
    "AvareSampler",
    "Cohort",
    "CohortError",
    "ConfigurationError",
    "DoublingOSMDSampler",
    "EmpiricalBayesSampler",
    "FeedbackError",
    "FixedSampler",
    "Guard",
    "KVibSampler",
    "LedgerError",
    "MABSSampler",
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
]
