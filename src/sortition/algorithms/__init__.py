"""One federated round each, as a pure function of the model and the cohort."""

from sortition.algorithms.fedsgd import FedSGD
from sortition.algorithms.protocol import Algorithm

__all__ = ["Algorithm", "FedSGD"]
