r"""Importance reshuffling: random reshuffling for examples that are not drawn equally often.

Before an epoch of n draws each example gets :math:`\lfloor n p_i \rfloor` or :math:`\lceil n p_i \rceil`
copies, :math:`n p_i` on average, and all copies are shuffled. With uniform p each example has one copy, and
this *is* random reshuffling. A loss weighted by :math:`1 / (n p_i)` has the mean of all losses as its
expectation, in each batch of the epoch.
"""

from __future__ import annotations

import numpy as np

from sortition.core.types import FloatArray, IntArray


def expected_copies(masses: FloatArray, num_draws: int) -> FloatArray:
    """n p of each example, for p in proportion to ``masses``; exactly one each if these are equal.

    >>> expected_copies(np.array([1.0, 1.0, 2.0]), num_draws=4)
    array([1., 1., 2.])
    """
    relative = masses / masses.max()
    return np.asarray(relative * (num_draws / relative.sum()))


def systematic_copies(expected: FloatArray, start: float) -> IntArray:
    r"""Whole copies of each example: the whole numbers that its stretch of a line holds.

    The stretches, of lengths ``expected``, are laid end to end from 0. Counted are the points
    :math:`1 - s, 2 - s, \dots` with s = ``start``. If s is uniform in [0, 1), a stretch of length e holds e
    points on average, and never differs from that by one or more (Madow 1949).

    >>> systematic_copies(np.array([0.5, 0.5, 2.0]), start=0.2).tolist()
    [0, 1, 2]
    >>> systematic_copies(np.array([0.5, 0.5, 2.0]), start=0.7).tolist()
    [1, 0, 2]
    """
    total = round(float(expected.sum()))
    ends = np.minimum(np.floor(np.cumsum(expected) + start), total)  # rounding may lead beyond it
    ends[-1] = total
    return np.diff(ends, prepend=0.0).astype(np.int64)


def reshuffled(expected: FloatArray, generator: np.random.Generator) -> IntArray:
    """The order of an epoch: as many copies of each example as drawn, shuffled.

    >>> sorted(reshuffled(np.array([0.5, 0.5, 2.0]), np.random.default_rng(0)).tolist())[1:]
    [2, 2]
    """
    copies = systematic_copies(expected, generator.random())
    order: IntArray = np.repeat(np.arange(len(expected)), copies)
    return generator.permutation(order)
