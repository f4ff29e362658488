r"""Clustered sampling (Fraboni, Vidal, Kameni and Lorenzi, ICML 2021): unbiased, with less variance.

K distributions :math:`r_1, \dots, r_K` over the clients, and one draw from each. With

.. math:: \sum_i r_{ki} = 1, \qquad \sum_k r_{ki} = K \lambda_i            (Proposition 1)

the aggregate :math:`\frac1K \sum_k g_{l_k}`, :math:`l_k \sim r_k`, is unbiased, and the clients' weights in
it vary no more than with K draws from :math:`\lambda` (Section 3.2). The paper's :math:`\lambda_i` is
:math:`n_i / n`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sortition.core.cohort import Cohort
from sortition.core.designs import Weighed, weigh_with_replacement
from sortition.core.state import array
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import whole_number
from sortition.core.variance import aggregate
from sortition.lab.rivals.subsets import SubsetSampler

ROUNDING = 1e-9
"""A cluster may exceed the room of a distribution by this much: masses are sums of rounded numbers."""


class Strata(NamedTuple):
    """K distributions, end to end: entries ``bounds[k]`` to ``bounds[k + 1]`` belong to the k-th."""

    members: IntArray
    masses: FloatArray
    """r_k of each member; about one in each stratum."""
    bounds: IntArray

    def matrix(self, num_members: int) -> FloatArray:
        """r, one row a distribution."""
        rows = np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))
        dense = np.zeros((len(self.bounds) - 1, num_members))
        np.add.at(dense, (rows, self.members), self.masses)
        return dense

    def draw(self, uniforms: FloatArray) -> IntArray:
        """One member of each stratum, for one uniform each."""
        edges = np.concatenate(([0.0], np.cumsum(self.masses)))
        low, high = edges[self.bounds[:-1]], edges[self.bounds[1:]]
        places = np.searchsorted(edges, low + uniforms * (high - low), side="right") - 1
        return np.asarray(self.members[np.clip(places, self.bounds[:-1], self.bounds[1:] - 1)])


def strata_of(members: IntArray, masses: FloatArray, rows: IntArray, num_strata: int) -> Strata:
    """Strata from entries in any order; entry i belongs to the stratum ``rows[i]``."""
    order = np.argsort(rows, kind="stable")
    bounds = np.searchsorted(rows[order], np.arange(num_strata + 1))
    return Strata(members[order], masses[order], bounds)


def poured(lengths: FloatArray, rooms: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Pour ``lengths`` one after another into ``rooms``, filling each before the next.

    Returns for each piece which length and which room it belongs to, and how long it is.

    >>> poured(np.array([1.5, 0.5]), np.array([1.0, 1.0]))
    (array([0, 0, 1]), array([0, 1, 1]), array([1. , 0.5, 0.5]))
    """
    ends, walls = np.cumsum(lengths), np.cumsum(rooms)
    cuts = np.union1d(ends, walls[:-1])
    cuts = cuts[(cuts > 0.0) & (cuts <= ends[-1])]
    sizes = np.diff(cuts, prepend=0.0)
    middles = cuts - sizes / 2.0
    which = np.minimum(np.searchsorted(ends, middles, side="right"), len(lengths) - 1)
    room = np.minimum(np.searchsorted(walls, middles, side="right"), len(rooms) - 1)
    return which, room, sizes


def strata_by_size(shares: FloatArray, cohort_size: int) -> Strata:
    r"""Algorithm 1: clients by decreasing size, poured into K distributions of mass one.

    A client with :math:`K \lambda_i \ge 1` fills whole distributions, and is certain to be drawn.

    >>> strata_by_size(np.array([0.2, 0.5, 0.3]), 2).matrix(3)
    array([[0. , 1. , 0. ],
           [0.4, 0. , 0.6]])
    """
    order = np.argsort(-shares, kind="stable")
    which, room, sizes = poured(cohort_size * shares[order], np.ones(cohort_size))
    return strata_of(order[which], sizes, room, cohort_size)


def strata_by_similarity(
    shares: FloatArray, distances: FloatArray, cohort_size: int, generator: np.random.Generator
) -> Strata:
    r"""Algorithm 2: similar clients share a distribution.

    Ward's tree on the ``distances`` between all pairs of clients (condensed, as scipy has them) is cut into
    the largest clusters with :math:`\sum_{i \in B} K \lambda_i \le 1`. The K heaviest clusters are the
    kernels of the K distributions; the clients of the others, lightest cluster first and in random order
    within it, fill what room is left, the lightest kernel's first.

    Deviation: the algorithm needs :math:`K \lambda_i \le 1`. A client with more first fills whole
    distributions, as in Algorithm 1, and takes part with the rest. Deviation: the authors' code hands
    scipy the square matrix of distances, which takes its rows for points; we hand it the distances.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    masses = cohort_size * shares
    whole = np.floor(masses + ROUNDING)
    masses = np.maximum(masses - whole, 0.0)
    alone = np.repeat(np.arange(len(shares)), whole.astype(np.int64))
    left = np.flatnonzero(masses > ROUNDING)
    rooms = cohort_size - len(alone)
    if not rooms:
        return strata_of(alone, np.ones(len(alone)), np.arange(len(alone)), cohort_size)
    clusters = np.zeros(len(left), dtype=np.int64)
    if len(left) > 1:
        among = distances
        if len(left) < len(shares):
            among = squareform(squareform(distances)[np.ix_(left, left)], checks=False)
        tree = linkage(among, "ward")
        weights = np.concatenate((masses[left], np.zeros(len(tree))))
        for node, (one, other) in enumerate(tree[:, :2].astype(np.int64).tolist(), start=len(left)):
            weights[node] = weights[one] + weights[other]
        tree[:, 2] = weights[len(left) :]  # cut by weight and not by height
        clusters = fcluster(tree, 1.0 + ROUNDING, criterion="distance") - 1
    totals = np.bincount(clusters, weights=masses[left])
    ascending = np.argsort(totals, kind="stable")
    kernels = ascending[len(ascending) - rooms :]
    row_of = np.full(len(totals), -1)
    row_of[kernels] = np.arange(rooms)
    kept = row_of[clusters] >= 0
    place = np.empty(len(totals), dtype=np.int64)
    place[ascending] = np.arange(len(ascending))
    fillers = generator.permutation(np.flatnonzero(~kept))
    fillers = fillers[np.argsort(place[clusters[fillers]], kind="stable")]
    members, rows, sizes = [left[kept]], [row_of[clusters[kept]]], [masses[left[kept]]]
    if len(fillers):
        gaps = np.maximum(1.0 - totals[kernels], 0.0)
        which, room, pieces = poured(masses[left[fillers]], gaps)
        members, rows, sizes = (
            [*members, left[fillers[which]]],
            [*rows, room],
            [*sizes, pieces],
        )
    members, rows, sizes = (
        [*members, alone],
        [*rows, rooms + np.arange(len(alone))],
        [*sizes, np.ones(len(alone))],
    )
    return strata_of(np.concatenate(members), np.concatenate(sizes), np.concatenate(rows), cohort_size)


class ClusteredBySizeSampler(SubsetSampler):
    """One client from each of K distributions that hold clients of like size (Algorithm 1); unbiased.

    >>> sampler = ClusteredBySizeSampler(num_clients=3, cohort_size=2, client_weights=[0.2, 0.5, 0.3])
    >>> bool(1 in sampler.draw().clients)
    True
    """

    def __init__(
        self, *, num_clients: int, cohort_size: int, client_weights: ArrayLike | None = None, seed: int = 0
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, seed)
        self._begin()

    def _choose(self, ids: IntArray, shares: FloatArray, generator: np.random.Generator) -> Weighed:
        draws = strata_by_size(shares, self._cohort_size).draw(generator.random(self._cohort_size))
        clients, counts, probabilities, weights = weigh_with_replacement(
            draws, shares[draws], self._cohort_size
        )
        return ids[clients], counts, probabilities, weights


class ClusteredBySimilaritySampler(SubsetSampler):
    r"""One client from each of K distributions that hold clients with like updates (Algorithm 2); unbiased.

    A client is represented by its last update, and by 0 before the first. The distance between two clients
    is the angle between these, 0 where one of them is 0 (Section 5, and the authors' code).

    The sampler has to see updates: use it as the memory of the algorithm, too. ``combine`` remembers them
    and gives the plain aggregate. It keeps all updates and all angles, M d + M (M - 1) / 2 numbers.

    ``recluster_every``: rounds between two clusterings, 1 in the paper; a tree costs O(M^2).

    >>> sampler = ClusteredBySimilaritySampler(num_clients=4, cohort_size=2, num_parameters=3)
    >>> cohort = sampler.draw()
    >>> step, norms = sampler.combine(cohort, np.ones((len(cohort), 3)), np.full(len(cohort), 0.25))
    >>> sampler.observe(cohort, norms)
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        num_parameters: int,
        client_weights: ArrayLike | None = None,
        recluster_every: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, seed)
        self._num_parameters = whole_number("num_parameters", num_parameters, least=1)
        self._recluster_every = whole_number("recluster_every", recluster_every, least=1)
        self.settings |= {"num_parameters": self._num_parameters, "recluster_every": self._recluster_every}
        self._begin()

    _strata: Strata | None
    _strata_ids: IntArray
    _directions: NDArray[np.float32]
    _angles: NDArray[np.float32]

    coefficient = 0.0
    """Of a memory that is not used: the aggregate is the plain one."""

    def remembered(self, client: int) -> FloatArray:
        """The direction of the client's last update, of length one; zeros before the first."""
        return np.asarray(self._directions[client], dtype=np.float64)

    def combine(
        self, cohort: Cohort, updates: FloatArray, client_weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Remember the updates, and return their plain aggregate and their norms."""
        norms = np.sqrt((updates * updates).sum(axis=1))
        with np.errstate(divide="ignore", invalid="ignore"):
            directions = np.where(norms[:, None] > 0.0, updates / norms[:, None], 0.0)
        clients = cohort.clients
        self._directions[clients] = directions
        cosines = np.clip(self._directions[clients] @ self._directions.T, -1.0, 1.0)
        angles = np.arccos(cosines)
        angles[:, ~self._directions.any(axis=1)] = 0.0
        angles[~directions.any(axis=1)] = 0.0
        self._angles[clients] = angles
        self._angles[:, clients] = angles.T
        return aggregate(cohort, client_weights, updates), norms

    def _choose(self, ids: IntArray, shares: FloatArray, generator: np.random.Generator) -> Weighed:
        uniforms = generator.random(self._cohort_size)
        draws = self._clustered(ids, shares, generator).draw(uniforms)
        clients, counts, probabilities, weights = weigh_with_replacement(
            draws, shares[draws], self._cohort_size
        )
        return ids[clients], counts, probabilities, weights

    def _clustered(self, ids: IntArray, shares: FloatArray, generator: np.random.Generator) -> Strata:
        """The strata of this round; those of an earlier one where the same clients are available."""
        due = self._round_index % self._recluster_every == 0
        if self._strata is None or due or not np.array_equal(ids, self._strata_ids):
            upper = np.triu_indices(len(ids), 1)
            distances = self._angles[np.ix_(ids, ids)][upper].astype(np.float64)
            self._strata = strata_by_similarity(shares, distances, self._cohort_size, generator)
            self._strata_ids = ids
        return self._strata

    def _begin(self) -> None:
        super()._begin()
        self._strata = None
        self._strata_ids = np.zeros(0, dtype=np.int64)
        size = self._roster.ids
        self._directions = np.zeros((size, self._num_parameters), dtype=np.float32)
        self._angles = np.zeros((size, size), dtype=np.float32)

    def _membership_changed(self, weight_factor: float) -> None:
        new = self._roster.ids - len(self._directions)
        self._directions = np.pad(self._directions, ((0, new), (0, 0)))
        self._angles = np.pad(self._angles, ((0, new), (0, new)))
        self._strata = None

    def _state(self) -> dict[str, Any]:
        strata = self._strata or Strata(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))
        return {
            "directions": self._directions.copy(),
            "angles": self._angles.copy(),
            "strata.ids": self._strata_ids.copy(),
            **{f"strata.{name}": values.copy() for name, values in strata._asdict().items()},
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        size = self._roster.ids
        self._directions = array(state, "directions", np.float32, (size, self._num_parameters))
        self._angles = array(state, "angles", np.float32, (size, size))
        self._strata_ids = array(state, "strata.ids", np.int64, (None,))
        members = array(state, "strata.members", np.int64, (None,))
        masses = array(state, "strata.masses", np.float64, (len(members),))
        bounds = array(state, "strata.bounds", np.int64, (None,))
        self._strata = Strata(members, masses, bounds) if len(members) else None
