r"""Models whose parameters have a client axis: a cohort's gradients, each at its own model, in one call.

All parameters of a client are one row of a matrix. ``logits`` takes them as tensors of shape (K, ...) and the
mini-batches of K clients; with K = 1 it is an ordinary model, which is how held-out data are judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from sortition.core.types import FloatArray

Parameters: TypeAlias = Mapping[str, Tensor]


class BatchedModel(Protocol):
    """What a model is here."""

    shapes: dict[str, tuple[int, ...]]
    """The parameters in the order in which they stand in a row; those of one axis begin at zero."""

    def logits(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """(K, batch, ..., classes) from (K, batch, ...)."""


class SoftmaxRegression:
    """One layer."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        self.shapes = {"weight": (num_features, num_classes), "bias": (num_classes,)}

    def logits(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """x W + b."""
        return torch.baddbmm(parameters["bias"].unsqueeze(1), inputs, parameters["weight"])


class TwoLayers:
    """A hidden layer with tanh."""

    def __init__(self, num_features: int, num_classes: int, hidden: int = 16) -> None:
        self.hidden = hidden
        self.shapes = {
            "weight": (num_features, hidden),
            "bias": (hidden,),
            "last": (hidden, num_classes),
            "last_bias": (num_classes,),
        }

    def logits(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """tanh(x W + b) V + c."""
        hidden = torch.tanh(torch.baddbmm(parameters["bias"].unsqueeze(1), inputs, parameters["weight"]))
        return torch.baddbmm(parameters["last_bias"].unsqueeze(1), hidden, parameters["last"])


class NextCharacter:
    r"""A gated recurrent unit over characters, with the layer that predicts the next one (Cho et al. 2014).

    .. math:: z, r = \sigma(W x + U h), \qquad n = \tanh(W_n x + r \odot U_n h), \qquad
              h \leftarrow (1 - z)\,n + z\,h

    x is one-hot, so that :math:`W x` is a look-up.
    """

    def __init__(self, num_characters: int, hidden: int = 24) -> None:
        self._hidden = hidden
        self.shapes = {
            "input": (num_characters, 3 * hidden),
            "input_bias": (3 * hidden,),
            "recurrent": (hidden, 3 * hidden),
            "last": (hidden, num_characters),
            "last_bias": (num_characters,),
        }

    def logits(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """For each character of each window, the logits of the one that follows."""
        clients, batch, window = inputs.shape
        recurrent, size = parameters["recurrent"], self._hidden
        table = parameters["input"] + parameters["input_bias"].unsqueeze(1)
        places = inputs.long().transpose(1, 2).reshape(clients, window * batch, 1)
        looked_up = table.gather(1, places.expand(-1, -1, 3 * size))
        state = looked_up.new_zeros(clients, batch, size)
        states = []
        for gates in looked_up.reshape(clients, window, batch, 3 * size).unbind(1):
            carried = torch.bmm(state, recurrent)
            update, reset = torch.sigmoid(gates[..., : 2 * size] + carried[..., : 2 * size]).chunk(2, dim=-1)
            new = torch.tanh(torch.addcmul(gates[..., 2 * size :], reset, carried[..., 2 * size :]))
            state = torch.lerp(new, state, update)
            states.append(state)
        seen = torch.stack(states, dim=2).reshape(clients, batch * window, size)
        predicted = torch.baddbmm(parameters["last_bias"].unsqueeze(1), seen, parameters["last"])
        return predicted.reshape(clients, batch, window, -1)


class SmallCNN:
    """Two convolutions with strides of 4 and 2, and a linear layer, for images of 28 by 28."""

    def __init__(self, num_classes: int, first: int = 8, second: int = 16) -> None:
        self.shapes = {
            "first": (16, first),
            "first_bias": (first,),
            "second": (9 * first, second),
            "second_bias": (second,),
            "last": (9 * second, num_classes),
            "last_bias": (num_classes,),
        }

    def logits(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Convolutions as products with patches, which batch over clients."""
        clients, batch, _ = inputs.shape
        patches = inputs.reshape(clients * batch, 7, 4, 7, 4).transpose(2, 3).reshape(clients, -1, 16)
        maps = torch.relu(_layer(patches, parameters, "first")).reshape(clients * batch, 7, 7, -1)
        patches = maps.unfold(1, 3, 2).unfold(2, 3, 2).reshape(clients, batch * 9, -1)
        maps = torch.relu(_layer(patches, parameters, "second"))
        return _layer(maps.reshape(clients, batch, -1), parameters, "last")


def _layer(inputs: Tensor, parameters: Parameters, name: str) -> Tensor:
    return torch.baddbmm(parameters[f"{name}_bias"].unsqueeze(1), inputs, parameters[name])


def initial_row(model: BatchedModel, seed: int) -> FloatArray:
    r"""Random parameters: :math:`N(0, 1/\mathrm{rows})` for matrices, zero for vectors."""
    generator = np.random.default_rng(seed)
    pieces = [
        generator.standard_normal(shape).ravel() / math.sqrt(shape[0]) if len(shape) > 1 else np.zeros(shape)
        for shape in model.shapes.values()
    ]
    return np.concatenate(pieces)


def named(model: BatchedModel, rows: Tensor) -> dict[str, Tensor]:
    """The parameters of each client (a row of ``rows``) by name."""
    sizes = [math.prod(shape) for shape in model.shapes.values()]
    pieces = torch.split(rows, sizes, dim=1)
    return {
        name: piece.reshape(len(rows), *shape)
        for (name, shape), piece in zip(model.shapes.items(), pieces, strict=True)
    }


def losses(model: BatchedModel, rows: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each example, (K, batch): for texts the mean over a window."""
    logits = model.logits(named(model, rows), inputs)
    each = torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), targets.reshape(-1).long(), reduction="none"
    )
    return each.reshape(*targets.shape[:2], -1).mean(dim=2)


def gradients(model: BatchedModel, rows: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient of each client's mean loss at its own model, one row each."""
    rows = rows.detach().requires_grad_()
    total = losses(model, rows, inputs, targets).mean(dim=1).sum()
    return torch.autograd.grad(total, rows)[0]
