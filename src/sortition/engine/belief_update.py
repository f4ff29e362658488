"""What the default sampler learns from a cohort: ``core.beliefs``, compiled.

Sums over all clients are kept up to date, so that a round costs what its cohort costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numba import njit

from sortition.core.beliefs import (
    ANCHOR,
    CHANCE,
    CLIPPED,
    DISCOVERY,
    FIRST_NOISE,
    FORGETTING,
    GONE,
    GROWTH,
    HIGHEST,
    HOLD,
    LARGEST_DEVIATION,
    LEAST_CHANCE,
    LEAST_LOSS,
    LEAST_SHARE,
    LEAST_SPREAD,
    LEAST_VARYING,
    LEAST_VISITS,
    LOSS_MEMORY,
    LOWEST,
    REPLIES,
    SQUARES,
    SURE,
    SURPRISE,
    TRUST,
)
from sortition.core.types import BoolArray, Fields, FloatArray, IntArray
from sortition.engine.clients import masses_of, named_prior
from sortition.engine.expert_trees import ExpertArrays, ExpertTrees
from sortition.engine.norm_window import position_in
from sortition.engine.reweighted import learnt_shares, limit_outliers, reweigh_drawn, see_drawn

LARGEST_BLUR = 1e6
"""If rounding may have grown to this many units, the sums over clients are made anew."""


@dataclass
class Population:
    """What is known of all clients: the numbers of ``core.beliefs.Beliefs``, and sums over clients.

    All logarithms are of feedback over the squared prior, relative to the common level.
    """

    level: float = math.nan
    """The common level that all logarithms are relative to; nan before the first feedback."""
    log_loss: float = math.nan
    """Logarithm of the running estimate of the variance loss."""
    discovered: float = LEAST_SHARE
    """The prior's share by discoveries."""
    learnt_loss: float = 0.0
    """Estimated loss of what was learnt, with the least share of the prior; recent rounds."""
    prior_loss: float = 0.0
    """The same of the prior."""
    share: float = LEAST_SHARE
    """Share of the draws that come from the prior."""
    theta: float = 0.0
    """Clients are judged by mean norms at 0, by mean squares at 1."""
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
    noise: float = FIRST_NOISE[0] * FIRST_NOISE[1]
    """Sum of squared deviations of observations from their clients' means."""
    noise_count: float = FIRST_NOISE[1]
    slope: float = 0.0
    """B, how x goes with the logarithm of the prior, as it was used last for those never met."""
    stranger: float = 0.0
    """log E[exp(x)] of a client never drawn with c = 0, times its chance to reply, as it was used last."""
    followed: float = 0.0
    """How many clients had replied when those two were set last, without those that have left since."""
    drawn: float = REPLIES[0]
    """How often clients were drawn."""
    replied: float = REPLIES[0]
    """How often they replied."""
    drawn_left: float = 0.0
    """How often those that have left were drawn."""
    replied_left: float = 0.0
    """How often those replied."""


PEOPLE_FIELDS = tuple(one.name for one in fields(Population))
PEOPLE = np.dtype([(name, np.float64) for name in PEOPLE_FIELDS])
"""One record: a ``Population``."""
CLIENT_FIELDS = (
    *("mean", "square", "visits", "surprise", "first", "typical", "heard", "size"),
    *("chance", "tries", "before", "misses", "missed_at", "drawn", "replied"),
)
CLIENT = np.dtype([(name, np.float64) for name in CLIENT_FIELDS])
"""A record for each slot: y and z over n visits, last surprise, first x, the typical x of so many that were
heard, c; the chance to reply over the last tries and before the present misses in a row, these misses, the
replies of all when the last draw was counted, and how often the client was drawn and has replied in all."""


@njit(cache=True)
def _bounded(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)


@njit(cache=True)
def _deviation(x: float, mean: float) -> float:
    return 2.0 * math.expm1(0.5 * (x - mean))


@njit(cache=True)
def _without_size(x: float, by_size: float) -> float:
    return math.exp(_bounded(x - by_size, LOWEST, HIGHEST))


@njit(cache=True)
def _log_sum_exp(logs: FloatArray) -> float:
    top = logs.max()
    return float(top + math.log(np.exp(logs - top).sum()))


@njit(cache=True)
def _chance(people: Any) -> float:
    replied, drawn = people.replied - people.replied_left, people.drawn - people.drawn_left
    return max(float(replied / drawn), LEAST_CHANCE)


@njit(cache=True)
def _count(people: Any, client: Any, reply: float, size: float) -> None:
    """A running mean of replies, which starts from all clients' chance; ``people`` has the new reply."""
    if client.tries == 0.0:
        client.tries, client.chance, client.size = REPLIES[0], _chance(people), size
    if client.misses == 0.0:
        client.before = client.chance
    if reply > 0.0:
        client.misses = 0.0
    elif client.missed_at < people.replied:
        client.misses += 1.0
    client.missed_at = people.replied
    client.tries = min(client.tries + 1.0, REPLIES[1])
    client.chance += (reply - client.chance) / client.tries
    client.drawn += 1.0
    client.replied += reply


@njit(cache=True)
def _believed_chance(client: Any) -> float:
    """``core.beliefs.believed_chance``."""
    chance = client.chance
    if client.misses > 0.0:
        chance *= min((1.0 - min(client.before, SURE)) ** client.misses / GONE, 1.0)
    return max(float(chance), LEAST_CHANCE)


@njit(cache=True)
def _weigh_prior(
    people: Any,
    weights: FloatArray,
    log_feedback: FloatArray,
    p: FloatArray,
    q: FloatArray,
    prior: FloatArray,
    varied: FloatArray,
    sweep: float,
) -> None:
    """The prior's share and theta: ``Beliefs._weigh_prior``."""
    forgotten = math.exp(-HOLD * sweep)
    parts = np.log(weights) + log_feedback
    losses = parts - np.log(p)
    log_loss = _log_sum_exp(losses)
    if math.isnan(people.log_loss):
        people.log_loss = log_loss
        people.learnt_loss = TRUST[0] / sweep
        people.prior_loss = TRUST[0] * TRUST[1] / sweep
    kept, new = math.log(LOSS_MEMORY) + people.log_loss, math.log1p(-LOSS_MEMORY) + log_loss
    people.log_loss = max(kept, new) + math.log1p(math.exp(-abs(kept - new)))
    scale = max(log_loss, people.log_loss)
    worth = 1.0 - math.exp(log_loss - scale)
    people.learnt_loss *= forgotten
    people.prior_loss *= forgotten
    total = average = lost = slope = 0.0
    for i in range(parts.size):
        worth += math.exp(losses[i] - scale) * prior[i] / p[i]
        part = math.exp(parts[i] - people.log_loss)
        mixed = (1.0 - LEAST_SHARE) * q[i] + LEAST_SHARE * prior[i]
        people.prior_loss += part / prior[i]
        lost += part / mixed
        slope += part / mixed * varied[i]
        total += weights[i] * mixed
        average += weights[i] * mixed * varied[i]
    people.learnt_loss += lost
    people.theta = _bounded(people.theta + SQUARES[0] * (slope - lost * average / total), 0.0, SQUARES[1])
    people.discovered *= worth if worth > DISCOVERY else forgotten
    people.discovered = _bounded(people.discovered, LEAST_SHARE, 1.0)
    odds = (people.learnt_loss / max(people.prior_loss, LEAST_LOSS)) ** TRUST[2]
    people.share = max(people.discovered, LEAST_SHARE + (1.0 - LEAST_SHARE) * odds / (1.0 + odds))


@njit(cache=True)
def _follow_level(people: Any, seen: Any, slots: IntArray, x: FloatArray, telling: BoolArray) -> float:
    """By how much the level moves, by the clients that are ``telling``: ``Beliefs._follow_level``."""
    noise = math.sqrt(people.noise / people.noise_count)
    total = known = 0.0
    for i in range(slots.size):
        client = seen[slots[i]]
        if telling[i] and client.heard > 0.0:
            total += _bounded((x[i] - client.typical) / noise, -CLIPPED, CLIPPED)
            known += 1.0
    if known == 0.0:
        return 0.0
    part = max(1.0 - CHANCE * known / max(total**2, CHANCE), 0.0)
    change: float = part * noise * total / known + ANCHOR * people.typicals / people.heard_clients
    people.level += change
    return change


@njit(cache=True)
def _follow_typical(people: Any, client: Any, x: float) -> None:
    """``Beliefs._follow_typical``."""
    before = client.typical
    if client.heard > 0.0:
        largest = CLIPPED * math.sqrt(people.noise / people.noise_count)
        client.typical += _bounded(x - before, -largest, largest) / max(client.heard + 1.0, 2.0)
    else:
        client.typical = x
        people.heard_clients += 1.0
    people.typicals += client.typical - before
    client.heard += 1.0


@njit(cache=True)
def _include(people: Any, client: Any) -> None:
    """Count a client that has replied in the sums over clients, all but that of first squares."""
    people.met += 1.0
    people.sizes += client.size
    people.square_sizes += client.size**2
    people.means += client.mean
    people.square_means += client.mean**2
    people.products += client.size * client.mean
    people.inverse_visits += 1.0 / client.visits


@njit(cache=True)
def _remember(people: Any, client: Any, x: float, away: float) -> None:
    """One client's mean: ``Beliefs._remember``, after the noise was counted by the deviation ``away``."""
    c = client.size
    if client.visits == 0.0:
        client.mean, client.square, client.visits, client.surprise, client.first = x, x, 1.0, 0.0, x
        people.first_squares += _without_size(x, people.slope * c)
        _include(people, client)
        return
    mean, visits, last = client.mean, client.visits, client.surprise
    client.surprise = away / math.sqrt(people.noise / people.noise_count * (1.0 + 1.0 / visits))
    client.visits = visits + 1.0
    if client.surprise * last > 0.0 and min(abs(client.surprise), abs(last)) > SURPRISE:
        client.visits = max(FORGETTING * client.visits, LEAST_VISITS)
        client.heard *= FORGETTING
    client.mean = mean + 2.0 * math.log1p(0.5 * away / client.visits)
    client.square += math.log1p(math.expm1(x - client.square) / client.visits)
    people.means += client.mean - mean
    people.square_means += client.mean**2 - mean**2
    people.products += c * (client.mean - mean)
    people.inverse_visits += 1.0 / client.visits - 1.0 / visits


@njit(cache=True)
def _spread(people: Any) -> float:
    mean = people.means / people.met
    return max(float(people.square_means / people.met - mean**2), LEAST_SPREAD)


@njit(cache=True)
def _slope(people: Any) -> float:
    """B, as in ``Beliefs._set``."""
    varying = people.square_sizes / people.met - (people.sizes / people.met) ** 2
    if varying <= LEAST_VARYING:
        return 0.0
    common = people.products / people.met - people.sizes / people.met * people.means / people.met
    return float(common / (varying + 2.0 * _spread(people) / people.met))


@njit(cache=True)
def _logs(people: Any, seen: Any, slots: IntArray) -> FloatArray:
    """The logarithms of the clients' ratios to the prior: ``Beliefs._set``."""
    logs = np.empty(slots.size)
    stranger = pseudo_visits = 0.0
    if people.met > 0.0:
        stranger = math.log(people.first_squares / people.met)
        noise = people.noise / people.noise_count
        signal = _spread(people) - noise * people.inverse_visits / people.met
        pseudo_visits = noise / max(signal, LEAST_SPREAD)
    for i in range(slots.size):
        client = seen[slots[i]]
        own = client.visits / (client.visits + pseudo_visits) if client.visits > 0.0 else 0.0
        mean = client.mean + people.theta * (client.square - client.mean)
        expected = own * mean + (1.0 - own) * (stranger + people.slope * client.size)
        logs[i] = 0.5 * (expected + math.log(_believed_chance(client)))
    return logs


@njit(cache=True)
def _sum_first_squares(people: Any, seen: Any) -> None:
    people.first_squares = 0.0
    for client in seen:
        if client.visits > 0.0:
            people.first_squares += _without_size(client.first, people.slope * client.size)


@njit(cache=True)
def _sum_clients(people: Any, seen: Any) -> None:
    """Make the sums over clients anew."""
    people.met = people.sizes = people.square_sizes = people.means = people.heard_clients = 0.0
    people.square_means = people.products = people.inverse_visits = people.typicals = people.blur = 0.0
    for client in seen:
        if client.visits > 0.0:
            _include(people, client)
        if client.heard > 0.0:
            people.heard_clients += 1.0
            people.typicals += client.typical
    _sum_first_squares(people, seen)


@njit(cache=True)
def _lost(before: float, after: float) -> float:
    """By how much rounding grows, relative to a sum of numbers above 0 of which some were taken out."""
    if before > 0.0:
        return before / after if after > 0.0 else np.inf
    return 1.0


@njit(cache=True)
def forget(people_array: Any, seen: Any, slots: IntArray) -> None:
    """The clients in ``slots`` leave: the population is of those that stay."""
    people = people_array[0]
    squares, sizes = people.square_means, people.square_sizes
    visits, firsts = people.inverse_visits, people.first_squares
    for slot in slots:
        client = seen[slot]
        people.drawn_left += client.drawn
        people.replied_left += client.replied
        client.drawn = client.replied = client.misses = 0.0
        if client.heard > 0.0:
            people.heard_clients -= 1.0
            people.typicals -= client.typical
            client.heard = client.typical = 0.0
        if client.visits > 0.0:
            people.met -= 1.0
            people.followed = max(people.followed - 1.0, 0.0)
            people.sizes -= client.size
            people.square_sizes -= client.size**2
            people.means -= client.mean
            people.square_means -= client.mean**2
            people.products -= client.size * client.mean
            people.inverse_visits -= 1.0 / client.visits
            people.first_squares -= _without_size(client.first, people.slope * client.size)
            client.visits = 0.0
            people.blur += 1.0
    people.blur *= max(_lost(squares, people.square_means), _lost(sizes, people.square_sizes))
    people.blur *= max(_lost(visits, people.inverse_visits), _lost(firsts, people.first_squares))
    if people.blur > LARGEST_BLUR:
        _sum_clients(people, seen)


@njit(cache=True)
def _follow_strangers(people: Any, seen: Any, sizes_differ: bool) -> bool:
    """Whether those never drawn have followed what was learnt: the first part of ``Beliefs._set``."""
    if sizes_differ:
        if people.met < max(GROWTH * people.followed, 1.0):
            return False
        people.slope, people.followed = _slope(people), people.met
        _sum_first_squares(people, seen)
    people.stranger = math.log(_chance(people))
    if people.met > 0.0:
        people.stranger += math.log(people.first_squares / people.met)
    return True


@njit(cache=True)
def _take(
    people: Any, seen: Any, slots: IntArray, unseen_mass: float, sizes_differ: bool, learnt: Fields
) -> tuple[bool, float, float, bool]:
    """Draw by what was learnt of ``slots``: whether those never drawn have moved, and for ``take_over``."""
    moved = _follow_strangers(people, seen, sizes_differ)
    unseen_log, share = 0.5 * people.stranger, people.share
    done = reweigh_drawn(slots, _logs(people, seen, slots), unseen_log, unseen_mass, share, learnt)
    return moved, share, unseen_log, done


Taken = tuple[int, int, bool, float, float, bool]
"""How many clients are seen now and how many of the new ones have own masses, and the result of ``_take``."""


@njit(cache=True)
def miss(
    people_array: Any,
    seen: Any,
    clients: IntArray,
    center: float,
    sizes_differ: bool,
    learnt: Fields,
) -> Taken:
    """``Beliefs.miss``: ``clients`` were drawn and did not reply.

    ``center`` is what the logarithms of prior masses are relative to in c, and ``learnt`` is
    ``ReweightedPrior.learnt_fields``.
    """
    people, prior = people_array[0], named_prior(learnt[0])
    slots, count, new_own, unseen_mass = see_drawn(clients, learnt)
    log_masses = np.log(masses_of(prior, clients))
    people.drawn += slots.size
    for i in range(slots.size):
        _count(people, seen[slots[i]], 0.0, log_masses[i] - center)
    return count, new_own, *_take(people, seen, slots, unseen_mass, sizes_differ, learnt)


@njit(cache=True)
def learn(
    people_array: Any,
    seen: Any,
    clients: IntArray,
    weights: FloatArray,
    log_feedback: FloatArray,
    log_unit: float,
    center: float,
    sizes_differ: bool,
    sweep: float,
    learnt: Fields,
    outliers: IntArray,
    outlier_weights: FloatArray,
    largest_gain: float,
    deviation: float,
) -> Taken:
    """``Beliefs.learn``, with ``center`` and ``learnt`` as above; ``sweep`` is K / M.

    ``log_unit`` is added to the feedback: the units stay when clients join or leave.
    With a guard, ``outliers`` may hold no more of q than ``limit.share_of`` says, and do not move the level.
    """
    prior_fields, places, tree_fields, experts, _, _, _, _, _, _ = learnt
    people, prior, ratios = people_array[0], named_prior(prior_fields), ExpertTrees(*tree_fields).ratios
    slots, count, new_own, unseen_mass = see_drawn(clients, learnt)
    masses = masses_of(prior, clients)
    own, log_masses = masses / prior.total, np.log(masses)
    people.drawn += slots.size
    people.replied += slots.size
    for i in range(slots.size):
        _count(people, seen[slots[i]], 1.0, log_masses[i] - center)
    log_feedback = log_feedback + log_unit
    x = log_feedback - 2.0 * log_masses
    something = log_feedback.max() > -np.inf
    if math.isnan(people.level):
        if not something:  # there is no level yet
            return count, new_own, *_take(people, seen, slots, unseen_mass, sizes_differ, learnt)
        people.level = np.median(x[x > -np.inf])
    if something:
        q, share = learnt_shares(own, slots, ratios, experts), np.exp(ExpertArrays(*experts).log_weights[1])
        if outliers.size:
            _, (too_much, scale, from_prior, of_outliers) = limit_outliers(
                outliers, outlier_weights, largest_gain, deviation, prior_fields, places, ratios, experts
            )
            if too_much:
                # where outliers have all but rounding, so is the scale: nobody else has more than is left
                q = np.minimum(scale * q + from_prior * own, 1.0 - of_outliers.sum())
                for i in range(clients.size):
                    place = position_in(outliers, clients[i])
                    q[i] = of_outliers[place] if place >= 0 else q[i]
        p = share * own + (1.0 - share) * q
        varied = np.empty(slots.size)
        for i in range(slots.size):
            client = seen[slots[i]]
            varied[i] = client.square - client.mean if client.visits > 0.0 else 0.0
        _weigh_prior(people, weights, log_feedback, p, q, own, varied, sweep)
    for i in range(x.size):
        x[i] = _bounded(x[i] - people.level, LOWEST, HIGHEST)
    telling = log_feedback > -np.inf  # neither a zero nor an outlier says anything about the level
    if outliers.size:
        for i in range(clients.size):
            telling[i] &= position_in(outliers, clients[i]) < 0
    change = _follow_level(people, seen, slots, x, telling)
    for i in range(x.size):
        x[i] = _bounded(x[i] - change, LOWEST, HIGHEST)
        if telling[i]:
            _follow_typical(people, seen[slots[i]], x[i])
    away = np.empty(x.size)
    for i in range(x.size):
        client = seen[slots[i]]
        away[i] = _deviation(x[i], client.mean)
        if client.visits > 0.0:
            squared = min(away[i] ** 2, LARGEST_DEVIATION**2)
            people.noise += squared * client.visits / (client.visits + 1.0)
            people.noise_count += 1.0
    for i in range(x.size):
        _remember(people, seen[slots[i]], x[i], away[i])
    return count, new_own, *_take(people, seen, slots, unseen_mass, sizes_differ, learnt)
