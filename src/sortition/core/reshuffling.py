r"""Importance reshuffling: random reshuffling for examples that are not drawn equally often.

An epoch has d draws, and an example :math:`e_i = d\,p_i` copies on average, with :math:`\sum_i e_i = d`.
Copies are whole numbers, so each epoch must round. Two numbers of each example carry what was rounded from
epoch to epoch.

*The phase* :math:`\varphi_i` is what it is owed in copies, uniform in [0, 1) at the start. It gets

.. math:: c_i = \lfloor \varphi_i + (1 + \delta)\,e_i \rfloor, \qquad
          \varphi_i \leftarrow \varphi_i + e_i - c_i

where :math:`\delta` makes the copies d in all; it moves one copy of an example at most. All copies are
shuffled. If all e are 1, each example has one copy, and this *is* random reshuffling. For p that do not
depend on the draws, and but for :math:`\delta`, which is small with many examples, each phase stays uniform:
over the random start an example has :math:`e_i` copies on average, in every epoch.

*The debt* :math:`D_i` is what it is owed in weight: each epoch adds one, and its copies pay. Each of them has
the weight

.. math:: w_i = \frac{1}{e_i} + \frac{1}{c_i} \Big( D_i - \frac{\varphi_i - 1/2}{e_i} \Big), \qquad
          D_i \leftarrow D_i + 1 - c_i w_i = \frac{\varphi_i - 1/2}{e_i}

with the phase before on the left, and after on the right. While p stays as it is, the bracket is 0, and the
weight :math:`1/e_i`. When p changes, it takes back or gives what the example had too much or too little. Two
bounds come with it: an example that is drawn counts for half an epoch at least, and is owed half an epoch at
most then, :math:`D_i \leftarrow \min(D_i + 1/2,\ 1/2,\ (\varphi_i - 1/2)/e_i)`.

So the weighted count of an example after T epochs is T less what it is owed, whatever the sequence of p:

.. math:: \sum_{t \le T} c_i w_i = T + D_i^{(0)} - D_i^{(T)}, \qquad
          -\frac{3/2}{\min_t e_i} \le D_i^{(T)} \le \frac12 + \text{the epochs since it was drawn}

The lower bound holds as an example gets one copy at most that it is not owed, so that no phase is below -1.
With fewer than ten examples a phase may be -1.1: one that has had too much gets one more if nobody else can.

*Unbiased given the past* an epoch is not, and can't be: counts with the right mean given the past make a
martingale, whose error grows with the root of the number of epochs. With random reshuffling, too, the last
batches of an epoch are known from the first, and the model depends on these. What holds instead is that each
example counts once an epoch, up to a weight or two, so that errors cancel where steps are small. An example
with e = 1/2 is drawn in every second epoch: step sizes should not go up and down with such a period.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sortition.core.types import FloatArray, IntArray

LEAST_COUNT = 0.5
"""In epochs: what an example that is drawn counts for at least, and is owed at most afterwards."""


class Carried(NamedTuple):
    """What examples are owed when an epoch begins."""

    phases: FloatArray
    """In copies."""
    debts: FloatArray
    """In weight, in epochs."""


class Epoch(NamedTuple):
    """A plan."""

    order: IntArray
    """The examples of the draws."""
    weights: FloatArray
    """Of each example; nothing is meant by that of one that is not drawn."""
    carried: Carried
    """To the next epoch."""


def expected_copies(masses: FloatArray, num_draws: int) -> FloatArray:
    """d p of each example, for p in proportion to ``masses``; exactly one each if these are equal.

    >>> expected_copies(np.array([1.0, 1.0, 2.0]), num_draws=4)
    array([1., 1., 2.])
    """
    relative = masses / masses.max()
    return np.asarray(relative * (num_draws / relative.sum()))


def whole_copies(wanted: FloatArray, expected: FloatArray, num_draws: int) -> IntArray:
    r"""The whole numbers :math:`\max(0, \lfloor x + \delta e \rfloor)` whose sum is ``num_draws``.

    In proportion to e: if all were moved by the same, examples with a small e would be drawn far too often.

    >>> whole_copies(np.array([0.9, 1.2, 2.4]), np.ones(3), num_draws=4).tolist()
    [1, 1, 2]
    >>> whole_copies(np.array([0.9, 1.2, 2.4]), np.array([0.1, 1.0, 2.0]), num_draws=4).tolist()
    [0, 1, 3]
    """
    copies = np.maximum(np.floor(wanted), 0.0).astype(np.int64)
    while missing := num_draws - int(copies.sum()):
        if missing > 0:
            number = min(missing, len(copies))
            needed = (copies + 1 - wanted) / expected
            copies[np.argpartition(needed, number - 1)[:number]] += 1
        else:
            some = np.flatnonzero(copies)
            number = min(-missing, len(some))
            owed = (wanted - copies)[some] / expected[some]
            copies[some[np.argpartition(owed, number - 1)[:number]]] -= 1
    return copies


def first_carried(expected: FloatArray, generator: np.random.Generator) -> Carried:
    """Phases (k + u)/n in a random order, u uniform, and the debts that belong to them."""
    phases = (generator.permutation(len(expected)) + generator.random()) / len(expected)
    return Carried(phases, (phases - 0.5) / expected)


def plan_epoch(expected: FloatArray, carried: Carried, generator: np.random.Generator) -> Epoch:
    """The draws of an epoch, their weights, and what is carried on.

    >>> generator, expected = np.random.default_rng(0), np.array([0.5, 0.5, 2.0])
    >>> first = plan_epoch(expected, first_carried(expected, generator), generator)
    >>> second = plan_epoch(expected, first.carried, generator)
    >>> np.bincount(np.concatenate([first.order, second.order])).tolist(), second.weights.tolist()
    ([1, 1, 4], [2.0, 2.0, 0.5])
    """
    phases, debts = carried
    wanted = phases + expected
    if np.all(expected == 1.0):  # random reshuffling, whatever the phases
        copies = np.ones(len(expected), dtype=np.int64)
    else:
        copies = whole_copies(wanted, expected, round(float(expected.sum())))
    left = wanted - copies
    usual = (left - 0.5) / expected
    least = np.minimum(np.minimum(debts, 0.0) + LEAST_COUNT, usual)
    after = np.where(copies > 0, least, debts + 1.0)
    each = np.maximum(copies, 1)
    weights = np.where(
        after == usual,
        1.0 / expected + (debts - (phases - 0.5) / expected) / each,  # to the bit 1 / e while e stays
        (debts + 1.0 - after) / each,
    )
    order = generator.permutation(np.repeat(np.arange(len(expected)), copies))
    return Epoch(order, weights, Carried(left, after))
