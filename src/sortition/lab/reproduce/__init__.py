"""The paper's figures, reproduced: ``plan`` says what is to be run, ``execute`` runs it."""

from sortition.lab.reproduce.command import Plan, execute, plan
from sortition.lab.reproduce.figures import FIGURES, FULL, QUICK, Scale
from sortition.lab.reproduce.settings import VARIANTS, Variant
from sortition.lab.reproduce.summary import Curve, Result

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
