r"""Mini-batches of many clients at once, from uniform numbers, and their least-squares gradients: compiled.

What a client trains on in a round is a function of (seed, round, client) and of nothing else.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from sortition.core.designs import RoundGenerator
from sortition.core.types import FloatArray, IntArray

BATCHES, LOCAL_STEPS = 1, 2
STEPS_A_ROUND = 1 << 20


def stream(seed: int, purpose: int) -> RoundGenerator:
    """Randomness of ``seed`` for one purpose: not that of a sampler with that seed, which is 0."""
    return RoundGenerator(seed + (purpose << 64))


@njit(cache=True)
def batch_rows(uniforms: FloatArray, sizes: IntArray, distinct: bool) -> IntArray:
    """Row b of client c's mini-batch out of its ``sizes[c]`` samples, one uniform number for each.

    With ``distinct`` no sample is taken twice (Floyd's algorithm), and sizes must be at least the batch's.

    >>> batch_rows(np.array([[0.0, 0.5, 0.99]]), np.array([4]), False)
    array([[0, 2, 3]])
    >>> batch_rows(np.array([[0.0, 0.0, 0.0]]), np.array([4]), True)
    array([[0, 2, 3]])
    """
    rows = np.empty(uniforms.shape, dtype=np.int64)
    width = uniforms.shape[1]
    for c in range(uniforms.shape[0]):
        for b in range(width):
            if not distinct:
                rows[c, b] = np.int64(uniforms[c, b] * sizes[c])
                continue
            last = sizes[c] - width + b
            row = np.int64(uniforms[c, b] * (last + 1))
            for earlier in range(b):
                if rows[c, earlier] == row:
                    row = last
                    break
            rows[c, b] = row
    return rows


@njit(cache=True, fastmath={"reassoc", "contract"})
def least_squares_gradients(
    features: FloatArray, targets: FloatArray, models: FloatArray, clients: IntArray, rows: IntArray
) -> FloatArray:
    r"""Mini-batch means of :math:`(\langle w, x\rangle - y)\,x`, one row for each of ``clients``.

    ``models`` has one row for all clients, or one for each; ``rows`` has one for each.
    """
    size, width = rows.shape
    dimension = features.shape[2]
    gradients = np.zeros((size, dimension))
    for c in range(size):
        model = models[c if models.shape[0] > 1 else 0]
        gradient = gradients[c]
        for b in range(width):
            x = features[clients[c], rows[c, b]]
            residual = 0.0
            for j in range(dimension):
                residual += x[j] * model[j]
            residual = (residual - targets[clients[c], rows[c, b]]) / width
            for j in range(dimension):
                gradient[j] += residual * x[j]
    return gradients


@njit(cache=True)
def least_squares_batches(
    features: FloatArray,
    targets: FloatArray,
    models: FloatArray,
    clients: IntArray,
    uniforms: FloatArray,
    distinct: bool,
) -> FloatArray:
    """The same, on the mini-batches that ``uniforms`` (one row for every client there is) stand for."""
    sizes = np.full(clients.size, features.shape[1])
    rows = batch_rows(uniforms[clients], sizes, distinct)
    return least_squares_gradients(features, targets, models, clients, rows)


@njit(cache=True)
def least_squares_norms(
    features: FloatArray, targets: FloatArray, model: FloatArray, uniforms: FloatArray, distinct: bool
) -> FloatArray:
    """The norms of all clients' gradients."""
    everybody = np.arange(features.shape[0])
    gradients = least_squares_batches(
        features, targets, model.reshape(1, model.size), everybody, uniforms, distinct
    )
    norms = np.empty(everybody.size)
    for c in range(norms.size):
        norms[c] = np.sqrt(np.sum(gradients[c] ** 2))
    return norms
