"""One federated round each, as a pure function of the model and the cohort."""

from sortition.lab.algorithms.fedavg import FedAvg
from sortition.lab.algorithms.fedsgd import FedSGD
from sortition.lab.algorithms.local import LocalProblem
from sortition.lab.algorithms.personalised import Personalised, PersonalisedProblem
from sortition.lab.algorithms.protocol import Algorithm
from sortition.lab.algorithms.scaffold import Scaffold, ScaffoldState

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
