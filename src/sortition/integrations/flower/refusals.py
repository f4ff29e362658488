"""Which strategies can't be combined with adaptive sampling, and why."""

from __future__ import annotations

import sys
from types import FrameType

from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)

from sortition.core.errors import ConfigurationError

_ROBUST = (
    "it compares the replies of the clients with each other, and adaptive sampling hands over a single, "
    "already weighted one: it would silently turn into FedAvg"
)
_PRIVATE = (
    "its noise is calibrated for clients that are drawn uniformly and weighted alike; drawn adaptively, a "
    "client's update can count for more than the clipping norm allows, and who is drawn depends on the data: "
    "the privacy that it promises would not hold"
)
_TREES = "it collects the clients' trees one by one, and trees have no weighted mean"

PRIVATE = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

REASONS: tuple[tuple[type[Strategy], str], ...] = (
    *((private, _PRIVATE) for private in PRIVATE),
    (FedMedian, _ROBUST),
    (FedTrimmedAvg, _ROBUST),
    (Krum, _ROBUST),
    (MultiKrum, _ROBUST),
    (Bulyan, _ROBUST),
    (QFedAvg, "it weights the clients by their losses, one by one, and would do so on top of our weights"),
    (FedXgbBagging, _TREES),
    (FedXgbCyclic, "it chooses the clients itself, one after the other, and hands trees on"),
)


def check_inner(inner: object) -> FedAvg:
    """``inner`` if it can be driven by one weighted reply; otherwise a ConfigurationError with the reason."""
    name = type(inner).__name__
    for refused, reason in REASONS:
        if isinstance(inner, refused):
            raise ConfigurationError(f"inner must not be {_called(name, refused.__name__)}: {reason}")
    if not isinstance(inner, FedAvg):
        raise ConfigurationError(
            "inner must be FedAvg, FedAdam, FedAvgM, FedProx, FedYogi, FedAdagrad or a subclass of one of "
            f"these, which can work from a single weighted reply, got {name}"
        )
    if inner.fraction_train != 1.0:
        raise ConfigurationError(
            f"inner must have fraction_train = 1.0, since the sampler decides how many clients train, "
            f"got {inner.fraction_train}"
        )
    return inner


def refuse_private_wrapper() -> None:
    """Raise if a differential privacy wrapper is what calls us: it keeps no trace on what it wraps."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, PRIVATE):
            raise ConfigurationError(f"{type(caller).__name__} must not wrap AdaptiveSampling: {_PRIVATE}")
        frame = frame.f_back


def _called(name: str, refused: str) -> str:
    return name if name == refused else f"{name} (a {refused})"
