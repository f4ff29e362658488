"""What a federation must offer for an algorithm and an experiment to run on it."""

from __future__ import annotations

from typing import Protocol

from sortition.core.types import FloatArray, IntArray


class Problem(Protocol):
    """A federation: clients with data, a model as one flat array, and what training it reveals.

    What a client computes in a round depends on the model, the round and the client, and on nothing
    else, so that two samplers that are compared face the same mini-batches.
    """

    @property
    def num_clients(self) -> int:
        """M, the number of clients."""

    @property
    def client_weights(self) -> FloatArray:
        """lambda_m, what client m's loss counts in the training loss; they sum to one."""

    def initial_model(self) -> FloatArray:
        """The model before the first round."""

    def updates(self, model: FloatArray, clients: IntArray, round_index: int) -> FloatArray:
        """g_m of each of ``clients``, one row a client."""

    def all_norms(self, model: FloatArray, round_index: int) -> FloatArray:
        """The norm of every client's update in this round: what only an oracle knows."""

    def loss(self, model: FloatArray) -> float:
        """The training loss over all the data of all clients."""
