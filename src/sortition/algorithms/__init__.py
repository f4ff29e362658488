"""One federated round each, as a pure function of the model and the cohort."""

from sortition.algorithms.fedavg import FedAvg
from sortition.algorithms.fedsgd import FedSGD
from sortition.algorithms.local import LocalProblem
from sortition.algorithms.personalised import Personalised, PersonalisedProblem
from sortition.algorithms.protocol import Algorithm
from sortition.algorithms.scaffold import Scaffold, ScaffoldState

__all__ = [
    "Algorithm",
    "FedAvg",
    "FedSGD",
    "LocalProblem",
    "Personalised",
    "PersonalisedProblem",
    "Scaffold",
    "ScaffoldState",
]
