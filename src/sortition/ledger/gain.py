r"""The gain of a run over uniform sampling, estimated from the norms of those who were drawn.

``cohort.weights`` have mean one for every client. So with :math:`a_m = \lambda_m^2 \|g_m\|^2`

.. math:: \sum_{m \in S} \mathrm{weight}_m\,a_m \Big(\frac1{\pi_m} - 1\Big)

is an unbiased estimate of the sampling variance for inclusion probabilities :math:`\pi`: those of the run, or
K over the number of available clients. With replacement, :math:`1/(K p_m)` is in the place of the bracket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sortition.core.errors import LedgerError
from sortition.core.types import FloatArray, IntArray
from sortition.ledger.encoding import column_of
from sortition.ledger.record import Membership, RunRecord

DRAWS_A_BLOCK = 200
"""Rounds with this many draws together have about the same norms: their mean is the unit of each."""
LEAST_BLOCK = 5
LEAST_ROUNDS = 10
"""Fewer rounds give no interval."""
SAMPLES, MOST_GROUPS = 500, 200
"""Of the bootstrap, which draws rounds or, if they are many, groups of consecutive rounds."""
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Gain:
    """The sampling variance of a run over that of uniform sampling, or why it is not known."""

    ratio: float | None = None
    """Below 1 the run has less variance."""
    interval: tuple[float, float] | None = None
    """95%, by a bootstrap over the rounds; None if they are too few."""
    rounds: int = 0
    """Rounds that it was estimated from."""
    unknown: str = ""
    residuals: bool = False
    """Whether the run had a memory: then it is the variance of what had changed."""
    without: str = ""
    """Who was left out, in words: clients whose norms the guard had clipped."""

    def short(self) -> str:
        """A cell of a table.

        >>> Gain(0.5, (0.4, 0.6), 20).short()
        'x0.5 [0.4, 0.6]'
        """
        if self.ratio is None:
            return "-"
        ends = "" if self.interval is None else f" [{self.interval[0]:.3g}, {self.interval[1]:.3g}]"
        return f"x{self.ratio:.3g}{ends}{' (memory)' if self.residuals else ''}"

    def in_words(self) -> str:
        """One line."""
        if self.ratio is None:
            return self.unknown
        found = f"sampling variance x{self.ratio:.3g} that of uniform sampling"
        if self.residuals:
            found += " beside the same memory (what the memory itself saves is not in it)"
        if self.without:
            found += f", without {self.without}"
        if self.interval is None:
            return f"{found}, from {self.rounds} rounds: too few for an interval"
        low, high = self.interval
        return f"{found}, 95% interval {low:.3g} to {high:.3g}, from {self.rounds} rounds"


class PresentClients:
    """How many clients can be drawn, and their masses (client weights in the sampler's unit)."""

    def __init__(self, record: RunRecord) -> None:
        self.unknown = ""
        """Why the masses are not known; empty if they are."""
        clients, given = record.initial_clients, record.settings.get("client_weights")
        given = None if given is None else column_of(record.settings, "client_weights")
        if clients is None or not record.rebuildable or "client_weights" not in record.settings:
            self.unknown = "not known: the record does not say the client weights"
        elif (given is not None and len(given) != clients) or len(record.initially_left):
            self.unknown = "not known: the run goes on from one in which clients had joined or left"
        self._clients = clients or 0
        self._average = 1.0 / max(self._clients, 1)
        self._given = None if self.unknown else given
        self._joined = np.zeros(0)
        self.count, self.total = self._clients, 1.0
        """The clients with a mass that are here, and their mass."""
        if self._given is not None:
            self.count, self.total = int(np.count_nonzero(self._given)), float(self._given.sum())

    def change(self, change: Membership) -> None:
        """Clients have joined or left."""
        if self.unknown:
            return
        if change.joined is not None and len(change.joined):
            places = change.joined - self._clients
            if places.min() < 0 or places.max() >= len(self._joined) + len(places):
                raise LedgerError(
                    f"ids of clients that join must follow {self._clients}, got {change.joined}"
                )
            new = np.full(len(places), self._average) if change.masses is None else change.masses
            if len(new) != len(places):
                raise LedgerError(
                    f"{len(places)} clients that join must have as many weights, got {len(new)}"
                )
            self._joined = np.concatenate((self._joined, np.zeros(len(places))))
            self._joined[places] = new
            self.count, self.total = self.count + int(np.count_nonzero(new)), self.total + float(new.sum())
        if change.left is not None:
            gone = self.masses(change.left)
            self.count, self.total = self.count - int(np.count_nonzero(gone)), self.total - float(gone.sum())

    def masses(self, clients: IntArray) -> FloatArray:
        """The masses of ``clients``, also of those that have left."""
        if len(clients) and not 0 <= clients.min() <= clients.max() < self._clients + len(self._joined):
            raise LedgerError(
                f"clients must have ids from 0 to {self._clients + len(self._joined) - 1}, "
                f"got {clients.min()} to {clients.max()}"
            )
        found = np.full(len(clients), self._average)
        first = clients < self._clients
        if self._given is not None:
            found[first] = self._given[clients[first]]
        found[~first] = self._joined[clients[~first] - self._clients]
        return found


def round_variances(
    sizes: IntArray,
    masses: FloatArray,
    probabilities: FloatArray,
    weights: FloatArray,
    norms: FloatArray,
    available: IntArray,
    totals: FloatArray,
    cohort_size: int,
    *,
    inclusion: bool,
) -> tuple[FloatArray, FloatArray]:
    """Of each round the estimated variance of its own draws, and of uniform draws of the same design.

    ``sizes`` are the clients of each round; ``masses`` to ``norms`` have an entry for each of them, one round
    after the other. ``available`` clients with the mass ``totals`` could be drawn. nan if nobody replied.
    """
    rounds = np.repeat(np.arange(len(sizes)), sizes)
    heard = ~np.isnan(norms)
    replies = np.bincount(rounds, heard, minlength=len(sizes))
    with np.errstate(all="ignore"):  # norms may be as large as they like: such a round is left out
        raised = weights * (sizes / replies)[rounds]
        weighted = np.where(heard, raised * (masses * norms / totals[rounds]) ** 2, 0.0)
        if inclusion:
            own = weighted * (1.0 / probabilities - 1.0)
            uniform = weighted * (1.0 / np.minimum(1.0, cohort_size / available) - 1.0)[rounds]
        else:
            own = weighted / (cohort_size * probabilities)
            uniform = weighted * (available / cohort_size)[rounds]
        both = np.stack([np.bincount(rounds, each, minlength=len(sizes)) for each in (own, uniform)])
    both[:, replies == 0] = np.nan
    return both[0], both[1]


def gain_of(own: FloatArray, uniform: FloatArray, cohort_size: int) -> Gain:
    """The gain from the estimates of each round, in the order of the draws; nan and infinities are left out.

    >>> gain_of(np.full(20, 1.0), np.full(20, 2.0), 5)
    Gain(ratio=0.5, interval=(0.5, 0.5), rounds=20, unknown='', residuals=False, without='')
    """
    known = np.isfinite(own) & np.isfinite(uniform)
    own, uniform = own[known], uniform[known]
    if not len(own):
        return Gain(unknown="not known: no round has a reply yet")
    block = min(len(own), max(LEAST_BLOCK, math.ceil(DRAWS_A_BLOCK / cohort_size)))
    scaled = np.zeros((2, len(own)))
    for part in np.array_split(np.arange(len(own)), len(own) // block):
        unit = uniform[part].mean()
        if unit > 0.0:
            scaled[:, part] = own[part] / unit, uniform[part] / unit
    total_own, total_uniform = scaled.sum(axis=1)
    if not total_uniform > 0.0:
        return Gain(unknown="none: uniform sampling has no variance here")
    ratio = float(total_own / total_uniform)
    if len(own) < LEAST_ROUNDS:
        return Gain(ratio, None, len(own))
    groups = min(len(own), MOST_GROUPS)
    starts = np.arange(groups) * len(own) // groups
    sums = np.add.reduceat(scaled, starts, axis=1)
    chosen = np.random.default_rng(0).multinomial(groups, np.full(groups, 1.0 / groups), size=SAMPLES)
    with np.errstate(all="ignore"):
        ratios = (chosen @ sums[0]) / (chosen @ sums[1])
    tail = (1.0 - LEVEL) / 2.0
    low, high = np.nanquantile(ratios, [tail, 1.0 - tail]).tolist()
    return Gain(ratio, (low, high), len(own))
