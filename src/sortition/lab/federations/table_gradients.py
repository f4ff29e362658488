r"""Gradients of the two models for tables, compiled: the same numbers as by torch, several times faster.

A table's rows are short and mostly zeros, so that most of torch's time is not spent on arithmetic.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sortition.core.types import FloatArray, IntArray


@njit(cache=True, fastmath={"reassoc", "contract"})
def layer(x: NDArray[Any], weights: FloatArray, bias: FloatArray, out: FloatArray) -> None:
    """out = x W + b, with W as one flat array."""
    out[:] = bias
    for i in range(x.size):
        if x[i] != 0.0:
            for j in range(out.size):
                out[j] += x[i] * weights[i * out.size + j]


@njit(cache=True, fastmath={"reassoc", "contract"})
def add_outer(x: NDArray[Any], residual: FloatArray, weights: FloatArray, bias: FloatArray) -> None:
    """Add the gradient of a layer with this input and this residual."""
    for j in range(residual.size):
        bias[j] += residual[j]
    for i in range(x.size):
        if x[i] != 0.0:
            for j in range(residual.size):
                weights[i * residual.size + j] += x[i] * residual[j]


@njit(cache=True, fastmath={"reassoc", "contract"})
def softmax_residual(logits: FloatArray, target: int, share: float) -> None:
    """Turn logits into share * (softmax - one-hot), in place."""
    most, total = logits[0], 0.0
    for j in range(1, logits.size):
        most = max(most, logits[j])
    for j in range(logits.size):
        logits[j] = math.exp(logits[j] - most)
        total += logits[j]
    for j in range(logits.size):
        logits[j] *= share / total
    logits[target] -= share


@njit(cache=True)
def softmax_gradients(
    models: FloatArray, inputs: NDArray[Any], targets: IntArray, rows: IntArray, classes: int
) -> FloatArray:
    """The gradient of softmax regression at each client's model, over its rows of the table."""
    gradients = np.zeros_like(models)
    logits, cut = np.empty(classes), inputs.shape[1] * classes
    for c in range(rows.shape[0]):
        model, gradient = models[c], gradients[c]
        for row in rows[c]:
            layer(inputs[row], model[:cut], model[cut:], logits)
            softmax_residual(logits, targets[row], 1.0 / rows.shape[1])
            add_outer(inputs[row], logits, gradient[:cut], gradient[cut:])
    return gradients


@njit(cache=True)
def two_layer_gradients(
    models: FloatArray, inputs: NDArray[Any], targets: IntArray, rows: IntArray, width: int, classes: int
) -> FloatArray:
    """The gradient of the two-layer network at each client's model, over its rows of the table."""
    gradients = np.zeros_like(models)
    hidden, logits, back = np.empty(width), np.empty(classes), np.empty(width)
    first = inputs.shape[1] * width
    second, third = first + width, first + width + width * classes
    for c in range(rows.shape[0]):
        model, gradient = models[c], gradients[c]
        for row in rows[c]:
            layer(inputs[row], model[:first], model[first:second], hidden)
            for i in range(width):
                hidden[i] = math.tanh(hidden[i])
            layer(hidden, model[second:third], model[third:], logits)
            softmax_residual(logits, targets[row], 1.0 / rows.shape[1])
            add_outer(hidden, logits, gradient[second:third], gradient[third:])
            for i in range(width):
                back[i] = 0.0
                for j in range(classes):
                    back[i] += model[second + i * classes + j] * logits[j]
                back[i] *= 1.0 - hidden[i] * hidden[i]
            add_outer(inputs[row], back, gradient[:first], gradient[first:second])
    return gradients
