"""The paper's figures, reproduced: ``plan`` says what is to be run, ``execute`` runs it."""

from sortition.experiments.reproduce.command import Plan, execute, plan
from sortition.experiments.reproduce.figures import FIGURES, FULL, QUICK, Scale
from sortition.experiments.reproduce.settings import VARIANTS, Variant
from sortition.experiments.reproduce.summary import Curve, Result

__all__ = [
    "FIGURES",
    "FULL",
    "QUICK",
    "VARIANTS",
    "Curve",
    "Plan",
    "Result",
    "Scale",
    "Variant",
    "execute",
    "plan",
]
