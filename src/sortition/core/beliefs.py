r"""What the default sampler believes of each client: the specification, over arrays of all clients.

``engine.belief_update`` is the same, compiled; a property test holds the two together.
``docs/research/default-sampler.md`` explains each part and shows what it is worth.
"""

from __future__ import annotations

import math

import numpy as np

from sortition.core.types import FloatArray, IntArray

PRIOR_UNIFORM = 0.1  # share of the prior that is uniform; the rest is proportional to the data sizes
LEAST_SHARE = 0.12  # share of the draws that come from the prior at least: it bounds the weights
DISCOVERY = 1.5  # a round in which the prior's draws were worth more multiplies their share by that worth
HOLD = 0.3  # otherwise the share falls, and losses are forgotten, by e^-hold in a sweep: M draws
LOSS_MEMORY = 0.9  # memory of the running loss, in rounds
TRUST = (0.1, 3.0, 4.0)  # before there is evidence, for 0.1 sweeps, the prior has lost 3 times as much; power
SQUARES = (0.015, 2.0)  # how fast theta follows the slope of the loss; its bound
SURPRISE = 1.2  # two surprises in a row with one sign, beyond so many deviations, shorten the memory
FORGETTING, LEAST_VISITS = 0.5, 1.001  # by this factor; and to so many visits at least: one has no mean
FIRST_NOISE = (0.5, 2.0)  # variance of a deviation before any is known; how many deviations it counts for
LARGEST_DEVIATION = 5.0  # bound on a deviation when the noise is estimated
CLIPPED = 2.0  # a deviation counts for at most so many standard deviations when the level follows
CHANCE = 2.0  # the level follows a cohort's mean deviation by 1 - this / z^2
ANCHOR = 0.02  # the level also moves by this part of the mean of all typical values, which keeps it near
GROWTH = 1.5  # if sizes differ, clients never drawn follow when so many times as many have replied
REPLIES = (2.0, 10.0)  # chance to reply: draws that all clients' chance counts for; draws remembered
SURE, GONE = (
    0.9,
    1e-6,
)  # a client has gone if its misses are less likely, with a chance of at most SURE before
LEAST_CHANCE = 1e-4  # least chance to reply; the prior's share finds a client when it returns
LEAST_LOSS, LEAST_SPREAD = 1e-300, 1e-3  # one divides by a loss, and by a variance between clients
ROUNDING, LEAST_VARYING = 1e-9, 1e-12  # sizes are equal within this; and do not vary with this variance
LOWEST, HIGHEST = -8.0, 300.0  # bounds of the logarithms, relative to the level


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
        self.prior, self.c = prior, np.log(prior) - np.log(prior).mean()
        self.sweep = min(cohort_size / len(prior), 1.0)  # the part of a sweep that a round is
        self.level = self.log_loss = math.nan  # before the first feedback
        self.learnt_loss = self.prior_loss = self.theta = 0.0
        self.share = self.discovered = LEAST_SHARE  # alpha, and what discoveries make of it
        self.noise, self.noise_count = FIRST_NOISE[0] * FIRST_NOISE[1], FIRST_NOISE[1]
        self.slope = self.stranger = self.followed = 0.0  # B and u, as those never drawn followed them last
        self.drawn = self.replied = REPLIES[0]
        self.log = np.full(len(prior), np.nan)  # h and the chance to reply, of those that were drawn
        # y and z over n visits, the last surprise, the first x; the typical x, over so many heard
        self.mean, self.square, self.visits, self.surprise, self.first = np.zeros((5, len(prior)))
        self.typical, self.heard = np.zeros((2, len(prior)))
        self.chance, self.before = np.ones((2, len(prior)))  # the second: before the present misses in a row
        self.tries, self.misses, self.missed_at = np.zeros((3, len(prior)))

    def learnt(self) -> FloatArray:
        """q."""
        of_strangers = 0.5 * (self.stranger + self.slope * self.c)
        masses = self.prior * np.exp(np.where(np.isnan(self.log), of_strangers, self.log))
        return np.asarray(masses / masses.sum())

    def probabilities(self) -> FloatArray:
        """p."""
        return (1.0 - self.share) * self.learnt() + self.share * self.prior

    def miss(self, clients: IntArray) -> None:
        """``clients`` were drawn and did not reply."""
        self._count(clients, 0.0)
        self._set(clients)

    def learn(self, clients: IntArray, weights: FloatArray, log_feedback: FloatArray) -> None:
        """Learn from the feedback of ``clients``, which replied."""
        self._count(clients, 1.0)
        x, telling = log_feedback - 2.0 * np.log(self.prior[clients]), log_feedback > -math.inf
        if math.isnan(self.level) and telling.any():
            self.level = float(np.median(x[telling]))
        if telling.any():
            self._weigh_prior(clients, weights, log_feedback)
        if not math.isnan(self.level):
            x = np.clip(x - self.level, LOWEST, HIGHEST)
            x = np.clip(x - self._follow_level(clients[telling], x[telling]), LOWEST, HIGHEST)
            self._follow_typical(clients[telling], x[telling])
            self._remember(clients, x)
        self._set(clients)

    def _count(self, clients: IntArray, reply: float) -> None:
        """A running mean of replies, which starts from all clients' chance.

        A miss in a row counts if somebody has replied since the last one: while nobody does, nobody is taken
        to have gone.
        """
        self.drawn += len(clients)
        self.replied += reply * len(clients)
        new = self.tries[clients] == 0.0
        before = np.where(new, self._chance_of_all(), self.chance[clients])
        self.tries[clients] = np.minimum(np.where(new, REPLIES[0], self.tries[clients]) + 1.0, REPLIES[1])
        self.chance[clients] = before + (reply - before) / self.tries[clients]
        self.before[clients] = np.where(self.misses[clients] == 0.0, before, self.before[clients])
        counted = self.misses[clients] + (self.missed_at[clients] < self.replied)
        self.misses[clients] = 0.0 if reply else counted
        self.missed_at[clients] = self.replied

    def _chance_of_all(self) -> float:
        return max(self.replied / self.drawn, LEAST_CHANCE)

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
        forgotten = math.exp(-HOLD * self.sweep)
        p, q, prior = self.probabilities()[clients], self.learnt()[clients], self.prior[clients]
        parts = np.log(weights) + log_feedback
        log_loss = float(np.logaddexp.reduce(parts - np.log(p)))
        if math.isnan(self.log_loss):
            self.log_loss = log_loss
            self.learnt_loss, self.prior_loss = TRUST[0] / self.sweep, TRUST[0] * TRUST[1] / self.sweep
        kept, new = math.log(LOSS_MEMORY) + self.log_loss, math.log1p(-LOSS_MEMORY) + log_loss
        self.log_loss = float(np.logaddexp(kept, new))
        scale = max(log_loss, self.log_loss)
        found = float((np.exp(parts - np.log(p) - scale) * (prior / p)).sum())
        worth = found + 1.0 - math.exp(log_loss - scale)
        discovered = self.discovered * (worth if worth > DISCOVERY else forgotten)
        self.discovered = min(max(discovered, LEAST_SHARE), 1.0)

        parts, mixed = np.exp(parts - self.log_loss), (1.0 - LEAST_SHARE) * q + LEAST_SHARE * prior
        self.learnt_loss = forgotten * self.learnt_loss + float((parts / mixed).sum())
        self.prior_loss = forgotten * self.prior_loss + float((parts / prior).sum())
        odds = (self.learnt_loss / max(self.prior_loss, LEAST_LOSS)) ** TRUST[2]
        self.share = max(self.discovered, LEAST_SHARE + (1.0 - LEAST_SHARE) * odds / (1.0 + odds))
        varied = self.square[clients] - self.mean[clients]
        average = (weights * mixed * varied).sum() / (weights * mixed).sum()
        theta = self.theta + SQUARES[0] * float((parts / mixed * (varied - average)).sum())
        self.theta = min(max(theta, 0.0), SQUARES[1])

    def _follow_level(self, clients: IntArray, x: FloatArray) -> float:
        """Move the level by the mean deviation of clients heard before, and return by how much.

        Deviations are those of logarithms from what is typical of a client. From its mean, those of skewed
        norms would be below 0 on average once they are clipped, and the level would fall for ever. Clients
        whose norms wander are drawn more often after large ones, so that what is heard next is smaller on
        average. The anchor keeps the level from following this for ever.
        """
        known = self.heard[clients] > 0.0
        if not known.any():
            return 0.0
        noise = math.sqrt(self.noise / self.noise_count)
        total = np.clip((x - self.typical[clients])[known] / noise, -CLIPPED, CLIPPED).sum()
        part = max(1.0 - CHANCE * known.sum() / max(total**2, CHANCE), 0.0)
        change = float(part * noise * total / known.sum() + ANCHOR * self.typical[self.heard > 0.0].mean())
        self.level += change
        return change

    def _follow_typical(self, clients: IntArray, x: FloatArray) -> None:
        """The value from which a client's clipped deviations are 0 on average, of its norms above zero."""
        before, heard = self.typical[clients], self.heard[clients]
        largest = CLIPPED * math.sqrt(self.noise / self.noise_count)
        moved = before + np.clip(x - before, -largest, largest) / np.maximum(heard + 1.0, 2.0)
        self.typical[clients] = np.where(heard > 0.0, moved, x)
        self.heard[clients] += 1.0

    def _remember(self, clients: IntArray, x: FloatArray) -> None:
        """Update the clients' means; two surprises in a row with one sign shorten their memories."""
        mean, square, visits, last = (
            a[clients] for a in (self.mean, self.square, self.visits, self.surprise)
        )
        known = visits > 0.0
        away = np.where(known, deviation(x, mean), 0.0)
        self.noise += (np.minimum(away**2, LARGEST_DEVIATION**2) * visits / (visits + 1.0)).sum()
        self.noise_count += np.count_nonzero(known)
        surprise = away / np.sqrt(self.noise / self.noise_count * (1.0 + 1.0 / np.maximum(visits, 1.0)))
        twice = np.minimum(surprise * np.sign(last), np.abs(last)) > SURPRISE
        visits = np.where(twice, np.maximum(FORGETTING * (visits + 1.0), LEAST_VISITS), visits + 1.0)
        self.visits[clients], self.surprise[clients] = visits, surprise
        self.heard[clients] *= np.where(twice, FORGETTING, 1.0)
        # the mean of e^(x/2): e^(y/2) is multiplied by 1 + (e^((x-y)/2) - 1) / n
        self.mean[clients] = np.where(known, mean + 2.0 * np.log1p(0.5 * away / visits), x)
        more = np.expm1(np.where(known, x - square, 0.0)) / visits
        self.square[clients] = np.where(known, square + np.log1p(more), x)
        self.first[clients] = np.where(known, self.first[clients], x)

    def _set(self, clients: IntArray) -> None:
        """h, shrunk towards the population, and the chance to reply; those never drawn may follow first."""
        met = self.visits > 0.0
        own, u, spread = 0.0, 0.0, LEAST_SPREAD
        y, c, count = self.mean[met], self.c[met], float(np.count_nonzero(met))
        sizes_differ = np.ptp(self.c) > ROUNDING
        follow = not sizes_differ or count >= max(GROWTH * self.followed, 1.0)
        if count:
            spread = max(float(y.var()), LEAST_SPREAD)
            if sizes_differ and follow:  # B, by least squares of y on c with a ridge
                covariance = float(((c - c.mean()) * (y - y.mean())).mean())
                self.slope = covariance / (c.var() + 2.0 * spread / count) if c.var() > LEAST_VARYING else 0.0
            u = math.log(without_size(self.first, self.slope * self.c)[met].mean())
            noise = self.noise / self.noise_count
            kappa = noise / max(spread - noise * (1.0 / self.visits[met]).mean(), LEAST_SPREAD)
            own = self.visits[clients] / (self.visits[clients] + kappa)
        if follow:
            self.stranger, self.followed = u + math.log(self._chance_of_all()), count
        mean = self.mean[clients] + self.theta * (self.square[clients] - self.mean[clients])
        twice_h = own * mean + (1.0 - own) * (u + self.slope * self.c[clients])
        chance = believed_chance(self.chance[clients], self.before[clients], self.misses[clients])
        self.log[clients] = 0.5 * (twice_h + np.log(chance))


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
