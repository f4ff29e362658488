r"""Mini-batches of many clients at once, from uniform numbers, and their least-squares gradients: compiled.

A mini-batch depends only on the seed, the round and the client.
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
def take_rows(uniforms: FloatArray, size: int, distinct: bool, rows: IntArray) -> None:
    """Fill ``rows`` with a mini-batch out of ``size`` samples, one uniform number for each.

    With ``distinct`` no sample is taken twice (Floyd's algorithm), and ``size`` must be at least the batch's.
    """
    width = rows.size
    for b in range(width):
        if not distinct:
            rows[b] = np.int64(uniforms[b] * size)
            continue
        last = size - width + b
        row = int(uniforms[b] * (last + 1))
        for earlier in range(b):
            if rows[earlier] == row:
                row = last
                break
        rows[b] = row


@njit(cache=True)
def batch_rows(uniforms: FloatArray, sizes: IntArray, distinct: bool) -> IntArray:
    """Row b of client c's mini-batch out of its ``sizes[c]`` samples.

    >>> batch_rows(np.array([[0.0, 0.5, 0.99]]), np.array([4]), False)
    array([[0, 2, 3]])
    >>> batch_rows(np.array([[0.0, 0.0, 0.0]]), np.array([4]), True)
    array([[0, 2, 3]])
    """
    rows = np.empty(uniforms.shape, dtype=np.int64)
    for c in range(uniforms.shape[0]):
        take_rows(uniforms[c], sizes[c], distinct, rows[c])
    return rows


@njit(cache=True)
def hashed_uniforms(key: int, clients: IntArray, width: int) -> FloatArray:
    """Uniform numbers in [0, 1) that depend on the key and the client only (splitmix64).

    Where a cohort is a small part of the clients, this costs less than numbers for all of them.

    >>> numbers = hashed_uniforms(5, np.array([3, 8]), 2)
    >>> bool((hashed_uniforms(5, np.array([8]), 2)[0] == numbers[1]).all())
    True
    """
    found = np.empty((clients.size, width))
    for c in range(clients.size):
        for b in range(width):
            mixed = np.uint64(key) + np.uint64(clients[c] * width + b + 1) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
            found[c, b] = np.float64(mixed >> np.uint64(11)) * 2.0**-53
    return found


@njit(cache=True, fastmath={"reassoc", "contract"})
def least_squares_gradient(
    features: FloatArray, targets: FloatArray, model: FloatArray, rows: IntArray, gradient: FloatArray
) -> None:
    r"""Fill ``gradient`` with one client's mini-batch mean of :math:`(\langle w, x\rangle - y)\,x`."""
    gradient[:] = 0.0
    for row in rows:
        x = features[row]
        residual = 0.0
        for j in range(x.size):
            residual += x[j] * model[j]
        residual = (residual - targets[row]) / rows.size
        for j in range(x.size):
            gradient[j] += residual * x[j]


@njit(cache=True)
def least_squares_batches(
    features: FloatArray,
    targets: FloatArray,
    models: FloatArray,
    clients: IntArray,
    uniforms: FloatArray,
    distinct: bool,
) -> FloatArray:
    """The gradients of ``clients``, one row each, on the mini-batches that ``uniforms`` stand for.

    ``uniforms`` has one row for every client there is; ``models`` one for all clients, or one for each drawn.
    """
    gradients = np.empty((clients.size, features.shape[2]))
    rows = np.empty(uniforms.shape[1], dtype=np.int64)
    for c, client in enumerate(clients):
        take_rows(uniforms[client], features.shape[1], distinct, rows)
        model = models[c if models.shape[0] > 1 else 0]
        least_squares_gradient(features[client], targets[client], model, rows, gradients[c])
    return gradients


@njit(cache=True)
def least_squares_norms(
    features: FloatArray, targets: FloatArray, model: FloatArray, uniforms: FloatArray, distinct: bool
) -> FloatArray:
    """The norms of all clients' gradients, without keeping the gradients."""
    norms, gradient = np.empty(features.shape[0]), np.empty(features.shape[2])
    rows = np.empty(uniforms.shape[1], dtype=np.int64)
    for client in range(norms.size):
        take_rows(uniforms[client], features.shape[1], distinct, rows)
        least_squares_gradient(features[client], targets[client], model, rows, gradient)
        square = 0.0
        for entry in gradient:
            square += entry * entry
        norms[client] = np.sqrt(square)
    return norms
