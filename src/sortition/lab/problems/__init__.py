"""Benchmark federations: data, a model and its gradients, nothing about sampling."""

from sortition.lab.problems.bilevel import PersonalisedLeastSquares
from sortition.lab.problems.digits import STEP_SIZE, DigitsFederation
from sortition.lab.problems.least_squares import LeastSquares
from sortition.lab.problems.protocol import Problem

__all__ = ["STEP_SIZE", "DigitsFederation", "LeastSquares", "PersonalisedLeastSquares", "Problem"]
