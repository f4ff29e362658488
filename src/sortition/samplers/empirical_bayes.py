"""Empirical Bayes, the default sampler: each client is shrunk towards what is known of all clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.beliefs import (
    LEAST_SHARE,
    PRIOR_UNIFORM,
    REPLIES,
    ROUNDING,
    SQUARES,
    believed_chance,
    without_size,
)
from sortition.core.cohort import Cohort
from sortition.core.designs import Design
from sortition.core.errors import StateError
from sortition.core.guard_settings import Guard
from sortition.core.state import array, check, count, number
from sortition.core.types import Fields, FloatArray, IntArray
from sortition.core.validation import client_ids, named_keywords, positive_number
from sortition.engine.belief_update import (
    CLIENT,
    CLIENT_FIELDS,
    PEOPLE,
    PEOPLE_FIELDS,
    Population,
    forget,
    learn,
    miss,
)
from sortition.engine.clients import Roster, masses_differ
from sortition.engine.reweighted import ReweightedPrior
from sortition.samplers.base import BaseSampler
from sortition.samplers.guard import NOBODY
from sortition.samplers.privacy import NormPrivacy

GUARD = Guard()
"""The guard of the default sampler unless told otherwise."""


class EmpiricalBayesSampler(BaseSampler):
    r"""Draws in proportion to the root of the *expected* squared norm, given all that was seen.

    The prior is ``prior`` or, if that is not given, :math:`\pi = (1-\rho)\lambda + \rho/M`.
    ``core.beliefs.Beliefs`` has the formula, and ``engine.belief_update`` computes it;
    ``docs/research/default-sampler.md`` explains each part and shows what it is worth.

    >>> sampler = EmpiricalBayesSampler(num_clients=100, cohort_size=5)
    >>> for _ in range(200):
    ...     cohort = sampler.draw()
    ...     sampler.observe(cohort, 1.0 + 9.0 * (cohort.clients == 3))
    >>> bool(sampler.probabilities([3]) > 0.05)
    True
    """

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        prior: ArrayLike | None = None,
        client_weights: ArrayLike | None = None,
        design: Design = "fixed_size",
        seed: int = 0,
        guard: Guard | None = GUARD,
        privacy: NormPrivacy | None = None,
    ) -> None:
        super().__init__(num_clients, cohort_size, client_weights, design, seed, guard, privacy)
        self._set_prior(prior)
        if prior is None and self._given_weights is not None:
            mixed = (1.0 - PRIOR_UNIFORM) * self._given_weights + PRIOR_UNIFORM / self._initial_clients
            self._roster = Roster(self._initial_clients, mixed)
        masses = self._roster.own.values  # all clients', or none's if neither prior nor weights were given
        # what the logarithms of prior masses are relative to
        self._center = float(np.log(masses[masses > 0.0]).mean()) if len(masses) else 0.0
        self._begin()

    def reply_rate(self, clients: ArrayLike | None = None) -> FloatArray:
        """The chance to reply of all clients, by id, or of ``clients``: a mean over their last draws.

        A client that was never drawn has that of all clients. One that has missed so many draws in a row that
        it seems to have gone has next to 0, until it replies. A round without any reply gives nobody up.
        """
        slots, seen = self._records(clients)
        tried = (slots >= 0) & (seen["tries"] > 0.0)
        people = self._people[0]
        own = believed_chance(seen["chance"], seen["before"], seen["misses"])
        of_all = (people["replied"] - people["replied_left"]) / (people["drawn"] - people["drawn_left"])
        return np.asarray(np.where(tried, own, of_all))

    def reply_weights(self, clients: ArrayLike, largest: float = 10.0) -> FloatArray:
        r"""One over the rate of replies of ``clients`` in the whole run, at most ``largest``.

        Multiply ``cohort.weights`` by them, before ``observe`` and instead of ``cohort.replied``. Then the
        aggregate of those that reply estimates that of all clients: in the long run, for rates that stay and
        are at least 1 / ``largest``. It is noisier.

        >>> sampler = EmpiricalBayesSampler(num_clients=2, cohort_size=2)
        >>> for _ in range(98):
        ...     sampler.observe(sampler.draw(), [1.0, 1.0 if sampler.round_index % 2 else np.nan])
        >>> sampler.reply_weights([0, 1]).round(1)
        array([1., 2.])
        """
        most = positive_number("largest", largest, above=1.0)
        _, seen = self._records(clients)
        rates = (seen["replied"] + 1.0) / (seen["drawn"] + 1.0)  # as if there had been one reply before
        return np.asarray(np.minimum(1.0 / rates, most))

    # What is learnt ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._people = np.array([tuple(asdict(Population()).values())], dtype=PEOPLE)
        self._distribution = self._reweighted = ReweightedPrior(self._roster, share=LEAST_SHARE)
        self._seen = np.zeros(0, dtype=CLIENT)  # a record for each slot
        self._followed = self._roster.ids  # the ids that there were when those never drawn followed last
        self._apart = False  # whether some of those never drawn had slots when they followed last: one by one
        self._compare_sizes()

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        shares = NOBODY if self._guard is None else self._guard.shares(self._weights)
        learnt = self._room_for(len(cohort.clients))
        taken = learn(
            self._people,
            self._seen,
            cohort.clients,
            cohort.weights,
            log_feedback,
            2.0 * math.log(self._weights.total),
            self._center,
            self._sizes_differ,
            min(self._cohort_size / self._roster.count, 1.0),
            learnt,
            *shares,
        )
        self._take(*taken)

    def _miss(self, clients: IntArray) -> None:
        learnt = self._room_for(len(clients))
        self._take(*miss(self._people, self._seen, clients, self._center, self._sizes_differ, learnt))

    def _room_for(self, more: int) -> Fields:
        """What a kernel changes, with room for ``more`` clients."""
        learnt = self._reweighted.learnt_fields(more)
        missing = len(self._reweighted.trees.ratios) - len(self._seen)
        if missing > 0:
            self._seen = np.concatenate((self._seen, np.zeros(missing, dtype=CLIENT)))
        return learnt

    def _take(
        self, count: int, new_own: int, moved: bool, share: float, unseen_log: float, done: bool
    ) -> None:
        """Take over what a kernel has learnt; those never drawn follow if they have ``moved``, or are new."""
        reweighted, roster, slope = self._reweighted, self._roster, self._people[0]["slope"]
        reweighted.take_over(count, new_own, share, unseen_log, done)
        alike = slope == 0.0 and not self._apart  # all that were never drawn have one ratio to the prior
        if alike or not (moved or self._followed < roster.ids):
            return
        own = np.arange(roster.block if moved else max(self._followed, roster.block), roster.ids)
        own = own[roster.present(own)]
        if slope != 0.0:
            self._room_for(len(own))
            reweighted.see(own)
        slots = np.arange(reweighted.count) if moved else reweighted.slots_of(own)
        slots = slots[slots >= 0]
        never = slots[(self._seen["tries"][slots] == 0.0) & (reweighted.trees.masses[slots] > 0.0)]
        sizes = np.log(reweighted.trees.masses[never]) - self._center
        reweighted.reweight_slots(never, unseen_log + 0.5 * slope * sizes, unseen_log)
        self._followed, self._apart = roster.ids, len(never) > 0 or (self._apart and not moved)

    @property
    def _sizes_differ(self) -> bool:
        """Whether those never drawn follow by their sizes: these differ, or did when they followed last."""
        return self._masses_differ or self._apart or self._people["slope"][0] != 0.0

    def _compare_sizes(self) -> None:
        equal = (1.0, 1.0) if self._roster.seats else (math.inf, 0.0)  # those without a mass of their own
        self._masses_differ = masses_differ(self._roster.own.values, *equal, ROUNDING)

    def _forget(self, leaving: IntArray) -> None:
        slots = self._reweighted.slots_of(leaving)
        forget(self._people, self._seen, slots[slots >= 0])

    def _membership_changed(self, weight_factor: float) -> None:
        self._compare_sizes()

    def _records(self, clients: ArrayLike | None) -> tuple[IntArray, Any]:
        """The slots of ``clients``, and what is kept of them; zeros where there is no slot."""
        ids = self._roster.ids
        asked = np.arange(ids) if clients is None else client_ids("clients", clients, ids)
        slots = self._reweighted.slots_of(asked)
        records = np.zeros(len(asked), dtype=CLIENT)
        records[slots >= 0] = self._seen[slots[slots >= 0]]
        return slots, records

    def _admit(self, masses: FloatArray, client_weights: FloatArray | None) -> IntArray:
        """The prior of a newcomer depends on its lambda, too, if that is given and no prior was."""
        if client_weights is not None and self.settings["prior"] is None:
            masses = (1.0 - PRIOR_UNIFORM) * client_weights + PRIOR_UNIFORM * masses
        return super()._admit(masses, client_weights)

    def _state(self) -> dict[str, Any]:
        seen = self._seen[: self._reweighted.count].copy()
        people = {name: float(self._people[0][name]) for name in PEOPLE_FIELDS}
        return {
            **self._reweighted.state(),
            **people,
            "followed_ids": self._followed,
            "apart": float(self._apart),
            "beliefs": seen.view(np.float64).reshape(-1, len(CLIENT_FIELDS)),
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        clients = array(state, "seen_clients", np.int64, (None,))
        rows = array(state, "beliefs", np.float64, (len(clients), len(CLIENT_FIELDS)))
        check("beliefs", rows, np.isfinite(rows), "finite")
        seen = np.ascontiguousarray(rows).view(CLIENT).reshape(-1)
        people = tuple(number(state, name, **LIMITS.get(name, {})) for name in PEOPLE_FIELDS)
        _check_sums(dict(zip(PEOPLE_FIELDS, people, strict=True)), seen)
        self._reweighted.restore(state)
        masses = self._reweighted.trees.masses[: len(seen)]
        here = (masses > 0.0) & (seen["tries"] > 0.0)
        if not np.allclose(
            seen["size"][here], np.log(masses[here]) - self._center, rtol=0.0, atol=SUM_TOLERANCE
        ):
            raise StateError("state has 'beliefs' with sizes that are not those of the clients")
        followed = count(state, "followed_ids")
        if followed > self._roster.ids:
            raise StateError(f"state has 'followed_ids' = {followed}, of {self._roster.ids} ids")
        self._followed, self._apart = followed, number(state, "apart") > 0.0
        self._people = np.array([people], dtype=PEOPLE)
        self._seen = seen


MOST, FURTHEST, LARGEST_EXPONENT = 1e15, 1e4, 700.0
"""The largest count of a state, the logarithm furthest from 0, and what a double allows as an exponent."""
LARGEST_LOSS = 1e250
"""Estimated losses are at most about one over the least prior; newcomers can make that 1e-200."""
LIMITS: dict[str, dict[str, Any]] = {
    "level": {"least": -FURTHEST, "most": FURTHEST, "nan": True},  # nan before the first feedback
    "log_loss": {"least": -FURTHEST, "most": FURTHEST, "nan": True},
    **{name: {"least": LEAST_SHARE, "most": 1.0} for name in ("discovered", "share")},
    **{name: {"least": 0.0, "most": LARGEST_LOSS} for name in ("learnt_loss", "prior_loss")},
    "theta": {"least": 0.0, "most": SQUARES[1]},
    **{name: {"least": 0.0, "most": MOST} for name in ("followed", "blur")},
    **{name: {"least": 1.0, "most": MOST} for name in ("noise", "noise_count", "drawn", "replied")},
    **{name: {"least": 0.0, "most": MOST} for name in ("drawn_left", "replied_left")},
    **{name: {"least": -FURTHEST, "most": FURTHEST} for name in ("slope", "stranger")},
}
"""What a number of a state may be; the sums over clients are compared with the clients."""
SUM_TOLERANCE = 1e-4
"""How far a sum of products may be from that of the clients, relative to the largest that it could be with
these squares (Cauchy and Schwarz): rounding adds up."""


def _check_sums(people: Mapping[str, float], seen: Any) -> None:
    """Raise a StateError unless the records of a state make sense, and have these sums."""
    drawn, replied = (people[name] - people[f"{name}_left"] for name in ("drawn", "replied"))
    right = REPLIES[0] <= replied <= drawn
    right &= people["learnt_loss"] * LEAST_SHARE <= people["prior_loss"] * (1.0 + SUM_TOLERANCE)
    for name in ("chance", "before"):
        right &= bool(np.all((seen[name] >= 0.0) & (seen[name] <= 1.0)))
    right &= bool(np.all((seen["misses"] >= 0.0) & (seen["misses"] <= seen["drawn"])))
    right &= bool(np.all((seen["replied"] >= 0.0) & (seen["replied"] <= seen["drawn"])))
    for name in ("visits", "tries"):
        right &= bool(np.all((seen[name] == 0.0) | ((seen[name] >= 1.0) & (seen[name] <= MOST))))
    right &= bool(np.all((seen["heard"] >= 0.0) & (seen["heard"] <= MOST)))
    for name in ("first", "mean", "typical"):
        right &= bool(np.all(np.abs(seen[name]) <= LARGEST_EXPONENT))
    right &= bool(np.all(seen["square"] >= seen["mean"] - SUM_TOLERANCE))
    right &= bool(np.all(np.abs(seen["square"]) <= LARGEST_EXPONENT / 2.0))
    if not right:
        raise StateError("state has 'beliefs' that no clients can have")
    for name, counted in (("drawn", drawn), ("replied", replied)):
        if counted != REPLIES[0] + seen[name].sum():
            raise StateError(
                f"state has {counted - REPLIES[0]} {name}, but 'beliefs' have {seen[name].sum()}"
            )
    seen = seen[seen["visits"] > 0.0]
    y, c, ones = seen["mean"], np.clip(seen["size"], -FURTHEST, FURTHEST), np.ones(len(seen))
    heard = (seen["heard"] > 0.0).astype(np.float64)
    for name, one, other in (
        ("met", ones, ones),
        ("heard_clients", heard, heard),
        ("typicals", heard, seen["typical"]),
        ("means", ones, y),
        ("square_means", y, y),
        ("inverse_visits", ones, ones / seen["visits"]),
        ("sizes", ones, c),
        ("square_sizes", c, c),
        ("products", c, y),
        ("first_squares", ones, without_size(seen["first"], people["slope"] * c)),
    ):
        found, largest = float(one @ other), float(np.linalg.norm(one) * np.linalg.norm(other))
        if not abs(people[name] - found) <= SUM_TOLERANCE * largest:
            raise StateError(f"state has {name!r} = {people[name]}, but 'beliefs' have {found}")


@named_keywords
def default_sampler(
    num_clients: int,
    cohort_size: int,
    client_weights: ArrayLike | None = None,
    *,
    prior: ArrayLike | None = None,
    design: Design = "fixed_size",
    seed: int = 0,
    guard: Guard | None = GUARD,
    privacy: NormPrivacy | None = None,
) -> EmpiricalBayesSampler:
    """The best sampler that we know of, with nothing to tune: ``EmpiricalBayesSampler``.

    It draws ``cohort_size`` distinct clients in each round (``design="fixed_size"``), or all if there are no
    more. ``client_weights`` is what each client counts for in the aggregate, such as its share of the data;
    equal if not given. ``prior`` is the distribution to start from and to shrink to, if more is known than
    ``client_weights``. ``seed`` fixes all randomness of a run. ``guard`` defends against clients that lie
    about their norms. ``privacy`` clips and noises the norms before anything is learnt from them.

    >>> default_sampler(100, 5).draw().cohort_size
    5
    """
    return EmpiricalBayesSampler(
        num_clients=num_clients,
        cohort_size=cohort_size,
        prior=prior,
        client_weights=client_weights,
        design=design,
        seed=seed,
        guard=guard,
        privacy=privacy,
    )
