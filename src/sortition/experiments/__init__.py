"""Samplers side by side on a federation."""

from sortition.experiments.compare import BASELINE, Comparison, Row, compare
from sortition.experiments.contestants import CONTESTANTS, Contestant, Trial
from sortition.experiments.trajectory import Trajectory, run

__all__ = [
    "BASELINE",
    "CONTESTANTS",
    "Comparison",
    "Contestant",
    "Row",
    "Trajectory",
    "Trial",
    "compare",
    "run",
]
