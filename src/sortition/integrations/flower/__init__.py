"""Adaptive client sampling in Flower federations, simulated or deployed.

>>> from flwr.serverapp.strategy import FedAvg
>>> from sortition.integrations.flower import AdaptiveSampling
>>> strategy = AdaptiveSampling(FedAvg(fraction_evaluate=0.0), cohort_size=20)
"""

from sortition.integrations.flower import _requirement  # noqa: F401  before anything that needs Flower
from sortition.integrations.flower.identities import (
    IdentityFunction,
    registered_identity,
    reported_identity,
)
from sortition.integrations.flower.memory_sum import remember_updates
from sortition.integrations.flower.secure_sum import weigh_update
from sortition.integrations.flower.strategy import AdaptiveSampling

__all__ = [
    "AdaptiveSampling",
    "IdentityFunction",
    "registered_identity",
    "remember_updates",
    "reported_identity",
    "weigh_update",
]
