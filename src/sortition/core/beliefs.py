r"""What the default sampler believes of each client: the specification, over arrays of all clients.

``engine.belief_update`` is the same in one compiled function; a property test holds the two together.
``docs/research/default-sampler.md`` explains each part and shows what it is worth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from sortition.core.types import BoolArray, FloatArray, IntArray

PRIOR_UNIFORM = 0.1
"""Share of the prior that is uniform; the rest is proportional to the data sizes."""
LEAST_SHARE = 0.12
"""Share of the draws that come from the prior at least: it bounds the weights."""
DISCOVERY = 1.5
"""A round in which the prior's draws were worth more than this multiplies their share by that worth."""
HOLD = 0.3
"""Otherwise the share falls, and losses are forgotten, by e^-hold in a *sweep*: M draws."""
LEAST_LOSS = 1e-300
"""An estimated loss is taken to be at least this: one divides by it."""
LOSS_MEMORY = 0.9
"""Memory of the running loss, in rounds."""
TRUST = (0.1, 3.0, 4.0)
"""What was learnt and the prior are compared by the fourth powers of their losses. Before there is evidence,
the prior has lost 3 times as much, for 0.1 sweeps."""
SQUARES = (0.015, 2.0)
"""How fast theta, the weight of mean squares, follows the slope of the loss, and its bound. That is above 1,
since the prior's share flattens what was learnt."""
SURPRISE = 1.2
"""Two surprises in a row with one sign, both beyond this many standard deviations, shorten the memory."""
FORGETTING, LEAST_VISITS = 0.5, 1.001
"""The factor by which they do, and how many visits they leave: with one, nothing would be left of the mean
before, and a norm far below it would have the logarithm of 0."""
FIRST_NOISE = (0.5, 2.0)
"""The variance of a deviation before any is known, and how many deviations that counts for."""
LARGEST_DEVIATION = 5.0
"""Bound on a deviation when the noise is estimated."""
CLIPPED = 2.0
"""A deviation counts for at most this many standard deviations when the level follows."""
CHANCE = 2.0
"""The level follows by 1 - this / z^2 of a cohort's mean deviation, which is z times its standard error: not
at all where it may be chance."""
ANCHOR = 0.02
"""In each round the level also moves by this part of the mean of all typical values, which keeps it near."""
GROWTH = 1.5
"""If sizes differ, clients never drawn follow what was learnt when so many times as many clients have replied
as the last time."""
REPLIES = (2.0, 10.0)
"""The chance to reply: how many draws all clients' chance counts for, and the draws that are remembered."""
SURE, GONE = 0.9, 1e-6
"""A client is taken to have gone when its misses in a row are less likely than the second number, by its
chance to reply before them, or by the first number if that is less."""
LEAST_CHANCE = 1e-4
"""A client's chance to reply is taken to be at least this. The prior's share finds it when it returns."""
LARGEST_BLUR = 1e6
"""If rounding may have grown to this many units, the sums over clients are made anew."""
LEAST_SPREAD = 1e-3
"""A variance between clients is taken to be at least this: one divides by it."""
ROUNDING = 1e-9
"""Prior masses that differ by no more than this, relative to each other, are equal."""
LOWEST, HIGHEST = -8.0, 300.0
"""Bounds of the logarithms, relative to the level."""


@dataclass
class Population:
    """Running sums; all logarithms are of feedback over the squared prior, relative to the common level."""

    level: float = math.nan
    """The common level that all logarithms are relative to; nan before the first feedback."""
    log_loss: float = math.nan
    """Logarithm of the running estimate of the variance loss."""
    discovered: float = field(default_factory=lambda: LEAST_SHARE)
    """The prior's share by discoveries."""
    learnt_loss: float = 0.0
    """Estimated loss of what was learnt, with the least share of the prior; recent rounds."""
    prior_loss: float = 0.0
    """The same of the prior."""
    share: float = field(default_factory=lambda: LEAST_SHARE)
    """Share of the draws that come from the prior."""
    squares: float = 0.0
    """theta: clients are judged by mean norms at 0, by mean squares at 1."""
    met: float = 0.0
    """Clients that have replied and have not left; all sums below are over these."""
    first_squares: float = 0.0
    """Sum of exp(x - B c) over first visits: what a client never met is expected to have."""
    means: float = 0.0
    """Sum of the clients' means y."""
    square_means: float = 0.0
    """Sum of y^2."""
    inverse_visits: float = 0.0
    """Sum of 1 / n over the clients' visits: how much of the means' spread is noise."""
    sizes: float = 0.0
    """Sum of c over those met."""
    square_sizes: float = 0.0
    """Sum of c^2."""
    products: float = 0.0
    """Sum of c y."""
    heard_clients: float = 0.0
    """Clients that have sent a norm above zero and have not left."""
    typicals: float = 0.0
    """Sum of what is typical of them."""
    blur: float = 0.0
    """Rounding in these sums since clients left, relative to them, in units of a double's. A client that
    made up nearly all of a sum leaves the others with few digits."""
    noise: float = field(default_factory=lambda: FIRST_NOISE[0] * FIRST_NOISE[1])
    """Sum of squared deviations of observations from their clients' means."""
    noise_count: float = field(default_factory=lambda: FIRST_NOISE[1])
    slope: float = 0.0
    """B, how x goes with the logarithm of the prior, as it was used last for those never met."""
    stranger: float = 0.0
    """log E[exp(x)] of a client never drawn with c = 0, times its chance to reply, as it was used last."""
    followed: float = 0.0
    """How many clients had replied when those two were set last, without those that have left since."""
    drawn: float = field(default_factory=lambda: REPLIES[0])
    """How often clients were drawn."""
    replied: float = field(default_factory=lambda: REPLIES[0])
    """How often they replied."""
    drawn_left: float = 0.0
    """How often those that have left were drawn."""
    replied_left: float = 0.0
    """How often those replied."""

    @property
    def noise_variance(self) -> float:
        """Variance of one deviation."""
        return self.noise / self.noise_count

    @property
    def mean(self) -> float:
        """The mean of the clients' means."""
        return self.means / self.met if self.met else 0.0

    @property
    def spread(self) -> float:
        """Variance of the clients' means, noise included."""
        return max(self.square_means / self.met - self.mean**2, LEAST_SPREAD)

    @property
    def chance(self) -> float:
        """The chance of all clients to reply."""
        return max((self.replied - self.replied_left) / (self.drawn - self.drawn_left), LEAST_CHANCE)


class Beliefs:
    r"""Draws in proportion to the root of the *expected* squared norm, given all that was seen.

    With the prior :math:`\pi`, feedback a and the level :math:`\ell` let :math:`x = \log(a / \pi^2) - \ell`:
    the best distribution is :math:`\pi e^{x/2}`. Of each client that replied, a running mean of norms
    :math:`e^{y/2} = \mathrm{mean}(e^{x/2})` and one of squares :math:`e^z = \mathrm{mean}(e^x)` over n visits
    are kept. They are shrunk towards the population, which counts for :math:`\kappa` visits:

    .. math:: & p = (1-\alpha)\,q + \alpha\,\pi, \qquad q_m \propto \pi_m e^{h_m} \sqrt{\rho_m}, \\
              & 2 h_m = w\,(y_m + \theta\,(z_m - y_m)) + (1-w)\,(u + B c_m), \qquad w = \frac{n}{n + \kappa}

    Here :math:`u + B c_m`, with c the logarithm of the prior less its average, is the expected
    :math:`\log E[e^x]` of a client never met, :math:`\kappa` the variance of a deviation over the spread of
    the means, and :math:`\rho` the chance to reply. :math:`\theta` is learnt from the losses, and
    stays near 0 unless some clients are noisier than others.

    >>> beliefs = Beliefs(np.full(4, 0.25), cohort_size=2)
    >>> beliefs.learn(np.array([0, 1]), np.array([2.0, 2.0]), np.log([1.0, 9.0]))
    >>> beliefs.probabilities().round(2)
    array([0.19, 0.29, 0.26, 0.26])
    """

    def __init__(self, prior: FloatArray, cohort_size: int) -> None:
        self._prior, self._cohort_size = prior, cohort_size
        self._c = np.log(prior) - np.log(prior).mean()
        self.people = Population()
        self.mean, self.square, self.visits, self.surprise, self.first = np.zeros((5, len(prior)))
        self._log = np.zeros(len(prior))  # h, of those that were drawn
        self.typical, self.heard = np.zeros((2, len(prior)))
        self._touched = np.zeros(len(prior), dtype=bool)
        self.chance, self.before = np.ones((2, len(prior)))  # the second: before the present misses in a row
        self.tries, self.misses, self.missed_at = np.zeros((3, len(prior)))

    @property
    def _sweep(self) -> float:
        """The part of a sweep that a round is."""
        return min(self._cohort_size / len(self._prior), 1.0)

    def learnt(self) -> FloatArray:
        """q."""
        of_strangers = 0.5 * (self.people.stranger + self.people.slope * self._c)
        masses = self._prior * np.exp(np.where(self._touched, self._log, of_strangers))
        return np.asarray(masses / masses.sum())

    def probabilities(self) -> FloatArray:
        """p."""
        return (1.0 - self.people.share) * self.learnt() + self.people.share * self._prior

    def miss(self, clients: IntArray) -> None:
        """``clients`` were drawn and did not reply."""
        self._count(clients, 0.0)
        self._follow_strangers()
        self._set(clients)

    def learn(self, clients: IntArray, weights: FloatArray, log_feedback: FloatArray) -> None:
        """Learn from the feedback of ``clients``, which replied."""
        self._count(clients, 1.0)
        people = self.people
        x = log_feedback - 2.0 * np.log(self._prior[clients])
        something = log_feedback.max() > -math.inf
        if math.isnan(people.level):
            if not something:  # there is no level yet
                self._follow_strangers()
                self._set(clients)
                return
            people.level = float(np.median(x[x > -math.inf]))
        if something:
            self._weigh_prior(clients, weights, log_feedback)
        x = np.clip(x - people.level, LOWEST, HIGHEST)
        above_zero = log_feedback > -math.inf  # a zero says nothing about the level
        known = above_zero & (self.heard[clients] > 0.0)
        if known.any():
            x = np.clip(x - self._follow_level(clients[known], x[known]), LOWEST, HIGHEST)
        self._follow_typical(clients[above_zero], x[above_zero])
        self._remember(clients, x, self.visits[clients] > 0.0)
        self._follow_strangers()
        self._set(clients)

    # Details -----------------------------------------------------------------------------------------

    def _count(self, clients: IntArray, reply: float) -> None:
        """A running mean of replies, which starts from all clients' chance.

        A miss in a row counts if somebody has replied since the last one: while nobody does, nobody is taken
        to have gone.
        """
        people = self.people
        people.drawn += len(clients)
        people.replied += reply * len(clients)
        first, most = REPLIES
        new = self.tries[clients] == 0.0
        before = np.where(new, people.chance, self.chance[clients])
        self.tries[clients] = np.minimum(np.where(new, first, self.tries[clients]) + 1.0, most)
        self.chance[clients] = before + (reply - before) / self.tries[clients]
        self.before[clients] = np.where(self.misses[clients] == 0.0, before, self.before[clients])
        self.misses[clients] = (
            0.0 if reply else self.misses[clients] + (self.missed_at[clients] < people.replied)
        )
        self.missed_at[clients] = people.replied

    def _weigh_prior(self, clients: IntArray, weights: FloatArray, log_feedback: FloatArray) -> None:
        r"""Raise the prior's share when its draws were worth more, or when what was learnt is no better.

        With :math:`v_m = \mathrm{weight}_m a_m / p_m`, whose sum V estimates the loss, the slope of the loss
        in the share has the sign of :math:`1 - r`, :math:`r = \sum_m v_m \pi_m / p_m \big/ V`: with r above 1
        the share is too small. A round of little loss says little: r is mixed with 1 by V over the running
        loss. And :math:`\sum \mathrm{weight}\,a / q` estimates without bias what *would* have been lost with
        q: the share also rises with the fourth power of the losses with what was learnt and with the prior.
        The slope of that loss in :math:`\theta` is about :math:`-\sum \mathrm{weight}\,a\,(v - E_q v) / 2q`,
        with v = z - y. Theta moves against it.
        """
        people, forgotten = self.people, math.exp(-HOLD * self._sweep)
        p, q, prior = self.probabilities()[clients], self.learnt()[clients], self._prior[clients]
        varied = self.square[clients] - self.mean[clients]
        parts = np.log(weights) + log_feedback
        log_loss = log_sum_exp(parts - np.log(p))
        if math.isnan(people.log_loss):
            people.log_loss = log_loss
            people.learnt_loss = TRUST[0] / self._sweep
            people.prior_loss = TRUST[0] * TRUST[1] / self._sweep
        people.log_loss = log_sum_exp(
            np.array([math.log(LOSS_MEMORY) + people.log_loss, math.log1p(-LOSS_MEMORY) + log_loss])
        )
        scale = max(log_loss, people.log_loss)
        found = float((np.exp(parts - np.log(p) - scale) * (prior / p)).sum())
        worth = found + 1.0 - math.exp(log_loss - scale)
        discovered = people.discovered * (worth if worth > DISCOVERY else forgotten)
        people.discovered = min(max(discovered, LEAST_SHARE), 1.0)

        parts = np.exp(parts - people.log_loss)
        mixed = (1.0 - LEAST_SHARE) * q + LEAST_SHARE * prior
        losses = parts / mixed
        people.learnt_loss = forgotten * people.learnt_loss + float(np.sum(losses))
        people.prior_loss = forgotten * people.prior_loss + float(np.sum(parts / prior))
        odds = (people.learnt_loss / max(people.prior_loss, LEAST_LOSS)) ** TRUST[2]
        people.share = max(people.discovered, LEAST_SHARE + (1.0 - LEAST_SHARE) * odds / (1.0 + odds))
        average = float((weights * mixed * varied).sum() / (weights * mixed).sum())
        squares = people.squares + SQUARES[0] * float((losses * (varied - average)).sum())
        people.squares = min(max(squares, 0.0), SQUARES[1])

    def _follow_level(self, clients: IntArray, x: FloatArray) -> float:
        """Move the level by the mean deviation of clients heard before, and return by how much.

        Deviations are those of logarithms from what is typical of a client. From its mean, those of skewed
        norms would be below 0 on average once they are clipped, and the level would fall for ever. Clients
        whose norms wander are drawn more often after large ones, so that what is heard next is smaller on
        average. The anchor keeps the level from following this for ever.
        """
        people, noise = self.people, math.sqrt(self.people.noise_variance)
        deviations = np.clip((x - self.typical[clients]) / noise, -CLIPPED, CLIPPED)
        total = float(np.sum(deviations))
        part = max(1.0 - CHANCE * len(clients) / max(total**2, CHANCE), 0.0)
        change = part * noise * total / len(clients) + ANCHOR * people.typicals / people.heard_clients
        people.level += change
        return change

    def _follow_typical(self, clients: IntArray, x: FloatArray) -> None:
        """The value from which a client's clipped deviations are 0 on average, of its norms above zero."""
        people, before, heard = self.people, self.typical[clients], self.heard[clients]
        largest = CLIPPED * math.sqrt(people.noise_variance)
        moved = before + np.clip(x - before, -largest, largest) / np.maximum(heard + 1.0, 2.0)
        self.typical[clients] = np.where(heard > 0.0, moved, x)
        self.heard[clients] += 1.0
        people.heard_clients += np.count_nonzero(heard == 0.0)
        people.typicals += float(np.sum(self.typical[clients] - before))

    def _remember(self, clients: IntArray, x: FloatArray, known: BoolArray) -> None:
        """Update the clients' means; two surprises in a row with one sign shorten their memories."""
        people = self.people
        mean, visits, last, c = (
            values[clients] for values in (self.mean, self.visits, self.surprise, self._c)
        )
        away = np.where(known, deviation(x, mean), 0.0)
        counted = np.minimum(away**2, LARGEST_DEVIATION**2) * visits / (visits + 1.0)
        people.noise += float(np.sum(counted[known]))
        people.noise_count += np.count_nonzero(known)
        surprise = away / np.sqrt(people.noise_variance * (1.0 + 1.0 / np.maximum(visits, 1.0)))
        twice = np.minimum(surprise * np.sign(last), np.abs(last)) > SURPRISE
        new_visits = np.where(twice, np.maximum(FORGETTING * (visits + 1.0), LEAST_VISITS), visits + 1.0)
        self.heard[clients] *= np.where(twice, FORGETTING, 1.0)
        # the mean of e^(x/2): e^(y/2) is multiplied by 1 + (e^((x-y)/2) - 1) / n
        new_mean = np.where(known, mean + 2.0 * np.log1p(0.5 * away / new_visits), x)
        more = np.expm1(np.where(known, x - self.square[clients], 0.0)) / new_visits
        self.square[clients] = np.where(known, self.square[clients] + np.log1p(more), x)
        self.first[clients] = np.where(known, self.first[clients], x)

        new, before = ~known, np.where(known, mean, 0.0)
        people.met += np.count_nonzero(new)
        people.first_squares += float(np.sum(without_size(x[new], people.slope * c[new])))
        people.sizes += float(np.sum(c[new]))
        people.square_sizes += float(np.sum(c[new] ** 2))
        people.means += float(np.sum(new_mean - before))
        people.square_means += float(np.sum(new_mean**2 - before**2))
        people.products += float(np.sum(c * (new_mean - before)))
        people.inverse_visits += float(
            np.sum(1.0 / new_visits - np.where(known, 1.0 / np.maximum(visits, 1.0), 0.0))
        )
        self.mean[clients], self.visits[clients], self.surprise[clients] = new_mean, new_visits, surprise

    def _slope(self) -> float:
        """B, by least squares of y on c with a ridge."""
        people = self.people
        varying = people.square_sizes / people.met - (people.sizes / people.met) ** 2
        if varying < 1e-12:
            return 0.0
        common = people.products / people.met - people.sizes / people.met * people.mean
        return common / (varying + 2.0 * people.spread / people.met)

    def _follow_strangers(self) -> None:
        """Let those never drawn follow what was learnt; if sizes differ, when many more have replied."""
        people = self.people
        if np.ptp(self._c) > ROUNDING:
            if people.met < max(GROWTH * people.followed, 1.0):
                return
            people.slope, people.followed = self._slope(), people.met
            met = self.visits > 0.0
            people.first_squares = float(np.sum(without_size(self.first, people.slope * self._c)[met]))
        people.stranger = self._stranger() + math.log(people.chance)

    def _stranger(self) -> float:
        """u, by first visits."""
        return math.log(self.people.first_squares / self.people.met) if self.people.met else 0.0

    def _set(self, clients: IntArray) -> None:
        """h, shrunk towards the population, and the chance to reply."""
        people, visits = self.people, self.visits[clients]
        own = np.zeros(len(clients))
        if people.met:
            noise = people.noise_variance
            signal = max(people.spread - noise * people.inverse_visits / people.met, LEAST_SPREAD)
            own = visits / (visits + noise / signal)
        stranger = self._stranger() + people.slope * self._c[clients]
        mean = self.mean[clients] + people.squares * (self.square[clients] - self.mean[clients])
        twice_h = own * mean + (1.0 - own) * stranger
        chance = believed_chance(self.chance[clients], self.before[clients], self.misses[clients])
        self._touched[clients] = True
        self._log[clients] = 0.5 * (twice_h + np.log(chance))


def believed_chance(chance: FloatArray, before: FloatArray, misses: FloatArray) -> FloatArray:
    r""":math:`\rho`, the mean over a client's last draws; next to 0 if its misses in a row say it has gone.

    >>> believed_chance(np.array([0.5, 0.5]), np.array([0.9, 0.5]), np.array([8.0, 8.0])).round(3)
    array([0.005, 0.5  ])
    """
    likely: FloatArray = (1.0 - np.minimum(before, SURE)) ** misses
    return np.asarray(np.maximum(chance * np.minimum(likely / GONE, 1.0), LEAST_CHANCE))


def without_size(x: FloatArray, by_size: FloatArray) -> FloatArray:
    """exp(x - B c), within the bounds of the logarithms."""
    return np.asarray(np.exp(np.clip(x - by_size, LOWEST, HIGHEST)))


def deviation(x: FloatArray, mean: FloatArray) -> FloatArray:
    r""":math:`2 (e^{(x - y)/2} - 1)`: how far a norm is from its mean, over half the mean; x - y if small."""
    return np.asarray(2.0 * np.expm1(0.5 * (x - mean)))


def log_sum_exp(logs: FloatArray) -> float:
    """The logarithm of the sum of exp(logs), of which one at least is not -inf."""
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()))
