"""Benchmark federations: data, a model and its gradients, nothing about sampling."""

from sortition.problems.bilevel import PersonalisedLeastSquares
from sortition.problems.digits import STEP_SIZE, DigitsFederation
from sortition.problems.least_squares import LeastSquares
from sortition.problems.protocol import Problem

__all__ = ["STEP_SIZE", "DigitsFederation", "LeastSquares", "PersonalisedLeastSquares", "Problem"]
