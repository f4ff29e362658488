"""A batch sampler that learns, the ticket of each batch, and a loader that hands both over."""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from sortition.core.designs import RoundGenerator
from sortition.core.errors import CohortError, ConfigurationError, FeedbackError, StateError
from sortition.core.reshuffling import Carried, expected_copies, first_carried, plan_epoch
from sortition.core.square_means import LEAST_SHARE, SquareMeans
from sortition.core.state import array, check, count, text
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import SMALLEST_MASS, named_keywords, one_each, real_numbers, whole_number
from sortition.integrations.torch.last_layer import PRECISE

Norms: TypeAlias = Tensor | ArrayLike
Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")
STATE_VERSION = 6
LARGEST_SEED = 2**64 - 1
LARGEST_EPOCH = 2**40
PARTITION = 2**62
"""The index of the generator that deals the examples to the ranks; epochs have lower ones, starts higher."""
PRIOR_UNIFORM = 0.1
"""Share of a given prior that is made uniform: it bounds the weights, and a wrong prior can be unlearnt."""
FURTHEST_PHASE = 8.0
"""Phases are between about -1 and 2."""
LARGEST = 1e120
"""Larger norms count as this: the sum of their squares must be finite."""
SUM_TOLERANCE = 1e-5
"""A prior whose sum is this near to one was divided by it, perhaps in float32; sums of rounded numbers."""


def _not_compiled(method: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
    """``torch.compile`` calls it as it is: a ticket holds arrays of numpy."""
    return cast("Callable[Asked, Answer]", torch.compiler.disable(method))  # type: ignore[no-untyped-call]


@dataclass
class EpochPlan:
    """The draws of an epoch, in their order."""

    epoch: int
    first: int
    """The batch to begin with: not 0 if the epoch was loaded in its middle."""
    examples: IntArray
    weights: FloatArray
    batch_size: int
    loads: int
    """How many states the sampler had loaded when it was planned."""
    carried: Carried
    """To the next epoch."""
    asked: int
    """How many batches were asked for, from the beginning of the epoch."""
    given: int
    """How many were given with their tickets by a ``TicketLoader``."""
    weighed: bool = False
    """Whether anybody asked for the weights of a batch."""
    heard: bool = False
    """Whether norms of a batch were observed."""
    ticketed: bool = False
    """Whether anybody asked for tickets."""
    used_before: bool = False
    """Whether batches before the first were used."""
    _shares: dict[tuple[torch.dtype, torch.device], Tensor] = field(default_factory=dict)

    @property
    def used(self) -> bool:
        """Whether any batch was trained on: weighed or observed, or in a loop without tickets."""
        without_tickets = not self.ticketed and self.asked > self.first
        return self.weighed or self.heard or self.used_before or without_tickets

    @property
    def reached(self) -> int:
        """How many batches were given, from the beginning of the epoch."""
        return self.given if self.given > self.first else self.asked

    def batch(self, position: int) -> slice:
        """Where the draws of a batch are."""
        return slice(position * self.batch_size, (position + 1) * self.batch_size)

    def shares(self, position: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A batch's weights over its size; the first step of an epoch converts those of all its batches."""
        shares = self._shares.get((dtype, device))
        if shares is None:
            last = len(self.weights) // self.batch_size * self.batch_size
            with torch.inference_mode(False):  # a later step may need gradients
                exact = torch.tensor(self.weights, device="cpu")
                exact[:last] /= self.batch_size
                exact[last:] /= len(self.weights) - last
                shares = exact.to(device=device, dtype=dtype)
            self._shares[dtype, device] = shares
        return shares[self.batch(position)]


@dataclass(eq=False)
class BatchTicket:
    """What was true when a batch was drawn: its examples, and what each counts for.

    It stays good however late it is used, but only one feedback is taken.
    """

    epoch: int
    """The number of the epoch, from 0."""
    position: int
    """The number of the batch in its epoch, from 0."""
    examples: IntArray
    """The numbers of its examples in the data set."""
    _plan: EpochPlan = field(repr=False)
    _sampler: AdaptiveBatchSampler = field(repr=False)
    _observed: bool = field(default=False, repr=False)

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def weights(self) -> FloatArray:
        r""":math:`1 / (n p_i)`, and what was owed from earlier epochs (``core.reshuffling``).

        That is for one process; with ranks it is so that the mean over them is right. One each in a plain
        shuffle.
        """
        self._plan.weighed = True
        return self._plan.weights[self._plan.batch(self.position)]

    @_not_compiled
    def mean(self, losses: Tensor) -> Tensor:
        """The weighted mean of the batch, an estimate of the plain mean over all examples.

        Over the random start the copies of an example have the right mean in every epoch, for p that do not
        depend on the draws and but for rounding, which is small with many examples. Given the past they have
        not, as with a plain shuffle, whose last batch is known before it comes. What holds for any p: an
        example's weights up to an epoch sum to the number of epochs less what it is owed
        (``core.reshuffling``).

        ``losses`` is one for each example of the batch, as ``reduction="none"`` gives them. The mean is taken
        in float32 at least, also within ``torch.autocast``. It is over all examples: where torch divides by
        the number of targets that are not ignored, or by the sum of class weights, multiply it by the number
        of examples over that number, or that sum, of the whole data set.
        """
        given: object = losses
        if not (
            isinstance(given, Tensor) and given.shape == self.examples.shape and given.is_floating_point()
        ):
            kind, shape = getattr(given, "dtype", type(given).__name__), tuple(getattr(given, "shape", ()))
            raise ConfigurationError(
                f"losses must be a tensor of floats with {len(self)} entries, one for each example of the "
                f'batch (reduction="none"), got {kind} of shape {shape}'
            )
        if losses.dtype not in PRECISE:
            losses = losses.float()
        self._plan.weighed = True
        shares = self._plan.shares(self.position, losses.dtype, losses.device)
        return torch.dot(losses, shares)  # autocast leaves dot in single precision

    @_not_compiled
    def observe(self, norms: Norms) -> None:
        """Learn from the gradient norms, one for each example of the batch; nan if one is not known.

        Any number that is about proportional to the norm will do. Norms are read when the next epoch is
        planned or a state is asked for, so that no step waits for a device unless it asks for a state. What
        turns out to be negative or infinite then counts as not known, with a warning.
        """
        if self._observed:
            raise CohortError(
                f"ticket of batch {self.position} of epoch {self.epoch} has had its feedback already; of "
                "several losses observe the norm of their sum, once"
            )
        if self._plan.loads != self._sampler._loads:
            raise CohortError(
                f"ticket of batch {self.position} of epoch {self.epoch} is from before load_state_dict; "
                "observe only what was drawn since"
            )
        if not isinstance(norms, Tensor):
            checked = one_each("norms", norms, len(self), "each example of the batch")
            norms = torch.tensor(checked, device="cpu")
        if norms.shape != self.examples.shape or norms.is_complex() or norms.dtype == torch.bool:
            raise FeedbackError(
                f"norms must be {len(self)} real numbers, one for each example of the batch, "
                f"got {norms.dtype} of shape {tuple(norms.shape)}"
            )
        kept = norms.detach().clone()  # the caller may use its memory again
        weights = self._plan.weights[self._plan.batch(self.position)]
        self._sampler._heard.waiting.append((self.examples, weights, kept))
        self._observed = self._plan.heard = True


class Feedback:
    """Draws that were heard since an epoch was planned: examples, weights and norms.

    Each norm is read from its device once. What was read is kept in arrays that grow by doubling and are only
    ever appended to: so ``read`` takes no longer than what is new, and what it gave before does not change.
    """

    def __init__(self, examples: IntArray, weights: FloatArray, norms: FloatArray) -> None:
        self.waiting: list[tuple[IntArray, FloatArray, Tensor]] = []
        self._size = len(examples)
        self._examples, self._weights, self._norms = examples, weights, norms

    def read(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """All examples, weights and norms; a norm that is none is nan."""
        if self.waiting:
            examples = np.concatenate([each[0] for each in self.waiting])
            kinds = groupby((each[2] for each in self.waiting), key=lambda norms: (norms.dtype, norms.device))
            norms = np.concatenate([_as_numpy(torch.cat(list(alike))) for _, alike in kinds])
            wrong = (norms < 0.0) | np.isinf(norms)
            if wrong.any():
                warnings.warn(
                    f"norms must be finite and not negative, got {norms[wrong][0]} for example "
                    f"{examples[wrong][0]}; {wrong.sum()} of {len(norms)} count as not known",
                    stacklevel=2,
                )
                norms[wrong] = np.nan
            begin, self._size = self._size, self._size + len(examples)
            if self._size > len(self._examples):
                more = max(self._size, 2 * begin) - begin
                self._examples, self._weights, self._norms = (
                    np.concatenate([old[:begin], np.empty(more, old.dtype)])
                    for old in (self._examples, self._weights, self._norms)
                )
            new = slice(begin, self._size)
            self._examples[new], self._norms[new] = examples, norms
            np.concatenate([each[1] for each in self.waiting], out=self._weights[new])
            self.waiting = []
        heard = slice(self._size)
        return self._examples[heard], self._weights[heard], self._norms[heard]


class AdaptiveBatchSampler(Sampler[list[int]]):
    r"""Batches for ``DataLoader(batch_sampler=...)``, in which examples with larger gradients are more often.

    An epoch has as many draws as there are examples. It is planned when its first batch is asked for: each
    example gets about :math:`n p_i` copies, all copies are shuffled, and the weights are about
    :math:`1 / (n p_i)`. What was rounded is carried to the next epoch, in copies and in weight, so that each
    example counts for one epoch in every epoch, up to a weight or two (``core.reshuffling``). p is learnt
    from what the tickets observe (``core.square_means``). Before anything is learnt, an epoch is a plain
    shuffle. A part of the draws comes from the prior: half at first, then by how well p has fitted norms that
    it did not know. It is 0.15 at least, so without a ``prior`` no :math:`1 / (n p_i)` is above 1 / 0.15.

    With ``drop_last`` an epoch has whole batches only; examples that had no place come first in the next one.
    A look at some batches, of which nothing was weighed or observed, leaves no trace. After an epoch that was
    used in part, or run to its end and not used, what is carried is dealt anew, so that what is missing is
    missing at random.

    ``prior`` is a distribution over the examples to start from and to shrink to, such as known row norms over
    their sum; a tenth of uniform draws is mixed in, so that no :math:`1 / (n p_i)` is above 67. With
    ``groups``, the label of each example's group (its source, user or language), all examples of a group
    share what is learnt: for data whose single examples are seen too rarely, or can't be addressed (the
    dataset's ``__getitem__`` may then give any example of the group). Neither changes the objective.

    Each process of several has its own ``rank`` below ``num_replicas``; both come from ``torch.distributed``
    if it is initialised. The examples are dealt to the ranks once, at random by ``seed``, which must be the
    same on all. A rank draws from its own examples only and learns about these only, so ranks need not talk
    to each other. All have the same number of batches, of the same sizes. The mean of their gradients, as
    DistributedDataParallel takes it, is unbiased.

    >>> sampler = AdaptiveBatchSampler(num_examples=5, batch_size=2, seed=1)
    >>> batches = list(sampler)
    >>> [len(batch) for batch in batches], sorted(sum(batches, []))
    ([2, 2, 1], [0, 1, 2, 3, 4])
    """

    @named_keywords
    def __init__(
        self,
        num_examples: int,
        batch_size: int,
        prior: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        seed: int = 0,
        *,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        world = _world()
        if world is None and (num_replicas is None) != (rank is None):
            given, missing = ("rank", "num_replicas") if num_replicas is None else ("num_replicas", "rank")
            raise ConfigurationError(
                f"{missing} must be given with {given}, as torch.distributed is not initialised, got None"
            )
        self._placed = num_replicas is not None and rank is not None
        if num_replicas is None:
            num_replicas = world[0] if world else 1
        if rank is None:
            rank = world[1] if world else 0
        if hasattr(num_examples, "__getitem__"):
            raise ConfigurationError(
                "num_examples must be a whole number, such as len(dataset), "
                f"got {type(num_examples).__name__}"
            )
        self.num_examples = whole_number("num_examples", num_examples, least=1)
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self.num_replicas = whole_number("num_replicas", num_replicas, least=1, most=self.num_examples)
        self.rank = whole_number("rank", rank, least=0, most=self.num_replicas - 1)
        self.seed = whole_number("seed", seed, least=0, most=LARGEST_SEED)
        self._generator = RoundGenerator(self.seed)
        self._shard: IntArray = np.arange(self.num_examples)
        if self.num_replicas > 1:
            dealt = self._generator.of_round(PARTITION).permutation(self.num_examples)
            self._shard = np.sort(dealt[self.rank :: self.num_replicas])
        self._draws = -(-self.num_examples // self.num_replicas)
        if not isinstance(drop_last, bool):
            raise ConfigurationError(f"drop_last must be True or False, got {drop_last!r}")
        self.drop_last = drop_last
        if not len(self):
            raise ConfigurationError(
                f"batch_size must be at most {self._draws} with drop_last, the draws of an epoch, "
                f"got {self.batch_size}"
            )
        if self.drop_last:
            self._draws -= self._draws % self.batch_size
        masses = None if prior is None else _checked_prior(prior, self.num_examples)
        units = None if groups is None else _checked_groups(groups, self.num_examples)
        self._settings = {
            "num_examples": self.num_examples,
            "batch_size": self.batch_size,
            "drop_last": str(self.drop_last),
            "num_replicas": self.num_replicas,
            "rank": self.rank,
            "seed": str(self.seed),  # a tensor or a file may hold no number that large
            "prior": _fingerprint(masses),
            "groups": _fingerprint(units),
        }
        self._prior = np.ones(self.num_examples)  # n pi
        if masses is not None:
            self._prior = (1.0 - PRIOR_UNIFORM) * self.num_examples * masses + PRIOR_UNIFORM
        self._units = np.arange(self.num_examples) if units is None else units
        sizes = np.bincount(self._units[self._shard], self._prior[self._shard], int(self._units.max()) + 1)
        self._beliefs = SquareMeans(sizes / sizes.sum(), self._draws)
        self._heard = _nothing_heard()
        self._moments = np.zeros(3)  # of the epoch before
        self._loads = 0
        self._epoch, self._position, self._used = -1, len(self), False
        self._plan: EpochPlan | None = None
        self._carried = self._dealt()

    # An epoch ----------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that was begun last, from 0; -1 before the first."""
        return self._epoch

    def __len__(self) -> int:
        """Batches in an epoch."""
        draws = self._draws if self.drop_last else self._draws + self.batch_size - 1
        return draws // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of the next epoch or, after ``load_state_dict``, those that are left of its epoch."""
        plan = self._begin()
        for position in range(plan.first, len(self)):
            self._check_plan(plan)
            plan.asked = position + 1
            yield plan.examples[plan.batch(position)].tolist()

    def _check_plan(self, plan: EpochPlan) -> None:
        """A loop goes on only in the epoch that was begun last."""
        if self._plan is not plan:
            raise CohortError(
                f"this loop is in epoch {plan.epoch}, which the sampler has left: another loop began, or "
                "leave or load_state_dict was called; have one loop at a time, or one sampler for each"
            )

    def leave(self) -> None:
        """End the epoch, if one is begun: the next loop begins a new one, also after a state was saved."""
        if self._plan is None and self._position < len(self):
            self._plan_again()
        if self._plan is not None:
            self._warn_if_not_weighed()
            self._warn_if_not_heard()
            self._carried, self._position = self._carried_on(self._plan, self._plan.reached), len(self)
            self._plan, self._used = None, False

    def _carried_on(self, plan: EpochPlan, reached: int) -> Carried:
        """What an epoch of which so many batches were given leaves to the next one.

        One that was used to its end goes on, and a look at some batches changes nothing. An epoch that was
        used in part, or run and not used, is followed by a new deal: otherwise phases would keep step with
        such epochs.
        """
        whole = reached == len(self)
        if whole == plan.used:
            return plan.carried if whole else self._carried
        return self._dealt()

    def _dealt(self) -> Carried:
        """Dealt at random, for what was learnt when the epoch was planned."""
        start = self._generator.of_round(PARTITION + 1 + (self._epoch + 1) * self.num_replicas + self.rank)
        return first_carried(self._expected_copies(self._beliefs), start)

    def tickets(self) -> Iterator[BatchTicket]:
        """The tickets of the epoch that was begun last, in the order of its batches.

        ``TicketLoader`` hands them out; call this if you have a loop of another kind, after the first batch.
        """
        plan = self._plan
        if plan is None:
            raise CohortError("tickets are there once the first batch of an epoch was asked for")
        plan.ticketed = True
        for position in range(plan.first, len(self)):
            batch = plan.batch(position)
            yield BatchTicket(plan.epoch, position, plan.examples[batch], plan, self)

    def probabilities(self) -> FloatArray:
        """p of each example, by all that was observed so far; of another rank's examples 0."""
        p = np.zeros(self.num_examples)
        p[self._shard] = self._expected_copies(self._learnt()) / self._draws
        return p

    def norms(self) -> FloatArray:
        """The root of the mean of squares that was observed of each example, or of its group; nan if none."""
        beliefs = self._learnt()
        roots = np.where(beliefs.visits > 0.0, np.sqrt(beliefs.means), np.nan)
        return np.asarray(roots[self._units] * self._prior)

    def moments(self) -> tuple[float, float, float] | None:
        r"""Means of :math:`w g^2`, :math:`(w g)^2` and :math:`w g`, with w = 1 / (n p) and the norm g.

        They are over the draws of the last epoch of which half or more was heard; None if there is none whose
        p had learnt anything. Each p was fixed before its norm was seen.
        """
        found = self._last_moments()
        return (float(found[0]), float(found[1]), float(found[2])) if found.any() else None

    def _last_moments(self) -> FloatArray:
        _, weights, norms = self._heard.read()
        known = ~np.isnan(norms)
        if 2 * np.count_nonzero(known) < self._draws or not self._beliefs.visits.any():
            return self._moments
        w = weights[known] * (self.num_examples / (self.num_replicas * self._draws))
        g = np.minimum(norms[known], LARGEST)
        return np.array([np.mean(w * g**2), np.mean((w * g) ** 2), np.mean(w * g)])

    def _begin(self) -> EpochPlan:
        """Plan the next epoch, or the loaded one again."""
        self._check_world()
        loaded = self._plan is None and self._position < len(self)
        if not loaded:
            self.leave()
            self._moments = self._last_moments()
            self._beliefs, self._heard = self._learnt(), _nothing_heard()
            self._epoch, self._position, self._used = self._epoch + 1, 0, False
        return self._plan_again()

    def _plan_again(self) -> EpochPlan:
        """The plan of the epoch from its position on; it is the same whenever it is asked for."""
        generator = self._generator.of_round(self._epoch * self.num_replicas + self.rank)
        order, each, carried = plan_epoch(self._expected_copies(self._beliefs), self._carried, generator)
        weights = (self.num_replicas * self._draws / self.num_examples) * each[order]
        examples, first = self._shard[order], self._position
        examples.flags.writeable = weights.flags.writeable = False  # the tickets are views of them
        self._plan = EpochPlan(
            self._epoch, first, examples, weights, self.batch_size, self._loads, carried, first, first
        )
        self._plan.used_before = self._used
        return self._plan

    def _check_world(self) -> None:
        """Without a place of its own, each rank would draw the same batches."""
        world = _world()
        if not self._placed and world not in (None, (self.num_replicas, self.rank)):
            raise ConfigurationError(
                f"num_replicas and rank must be those of torch.distributed, {world}, got "
                f"{(self.num_replicas, self.rank)}: build the sampler after init_process_group, or give both"
            )

    def _warn_if_not_weighed(self) -> None:
        """Whoever learns from an epoch of unequal draws must have weighed it."""
        plan = self._plan
        if plan is not None and plan.heard and not plan.weighed and np.ptp(plan.weights) > SUM_TOLERANCE:
            plan.weighed = True  # said once
            warnings.warn(
                f"the losses of epoch {plan.epoch} were not weighed: examples that are drawn more often "
                "count for more; use ticket.mean(losses), or ticket.weights",
                stacklevel=3,
            )

    def _warn_if_not_heard(self) -> None:
        """Somebody should learn from the first epoch, if it was run to its end."""
        plan = self._plan
        if plan is None or plan.epoch > 0 or plan.first > 0 or plan.reached < len(self):
            return
        if not plan.heard:
            warnings.warn(
                "no norms were observed in the first epoch, so that nothing is learnt; loop over a "
                "TicketLoader, and call ticket.observe(norms) in every step",
                stacklevel=3,
            )

    def _expected_copies(self, beliefs: SquareMeans) -> FloatArray:
        masses = beliefs.ratios()[self._units] * self._prior
        return expected_copies(masses[self._shard], self._draws)

    # What is learnt ----------------------------------------------------------------------------------

    def _learnt(self) -> SquareMeans:
        """What is known with all feedback that was kept since the epoch was planned."""
        beliefs = copy.deepcopy(self._beliefs)
        examples, weights, norms = self._heard.read()
        known = ~np.isnan(norms)
        if known.any():
            examples, weights, norms = examples[known], weights[known], norms[known]
            squares = np.minimum(norms / self._prior[examples], LARGEST) ** 2
            beliefs.learn(self._units[examples], squares, weights * self._prior[examples])
        return beliefs

    # Saving and continuing ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a continued run needs: numbers, strings and tensors, as ``torch.save`` takes them.

        It needs no ``deepcopy``: training on does not change it. It has all norms that were observed, so it
        waits for their device. Tickets that wait for their feedback are lost: observe them before.

        It is that of the last batch that was *asked for*. A ``DataLoader`` with workers asks for some in
        advance: use ``TicketLoader.state_dict``, which knows the last batch that you were given.
        """
        return self._state(self._position if self._plan is None else self._plan.asked)

    def _state(self, position: int) -> dict[str, Any]:
        """With what is carried to the epoch or, if it is over, to the next one."""
        examples, weights, norms = self._heard.read()
        plan, carried = self._plan, self._carried
        if plan is not None and position == len(self):
            carried = self._carried_on(plan, position)
        return {
            "kind": type(self).__name__,
            "version": STATE_VERSION,
            **{f"config.{name}": value for name, value in self._settings.items()},
            "epochs_begun": self._epoch + 1,
            "position": position,
            "used": int(self._used if plan is None else plan.used),
            "phases": torch.from_numpy(carried.phases),
            "debts": torch.from_numpy(carried.debts),
            "means": torch.from_numpy(self._beliefs.means),
            "visits": torch.from_numpy(self._beliefs.visits),
            "evidence": torch.from_numpy(self._beliefs.evidence),
            "moments": torch.from_numpy(self._moments),
            "heard_examples": torch.from_numpy(examples),
            "heard_weights": torch.from_numpy(weights),
            "heard_norms": torch.from_numpy(norms),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state: batches, weights and what is learnt equal the unbroken run's to the bit.

        The sampler must have been built with the arguments of the one that was saved. On a StateError nothing
        has changed. Tickets from before are refused.
        """
        if not isinstance(state_dict, Mapping):
            raise StateError(
                f"state must be a mapping, as state_dict gives it, got {type(state_dict).__name__}"
            )
        state = {name: _numpy_of(name, value) for name, value in state_dict.items()}
        wanted = {"kind": type(self).__name__, "version": STATE_VERSION}
        wanted |= {f"config.{name}": value for name, value in self._settings.items()}
        for name, value in wanted.items():
            if text(state, name) != value:
                said = name.removeprefix("config.")
                raise StateError(
                    f"state has {said} = {text(state, name)!r}, this sampler has {value!r}; "
                    "build it with the arguments of the one that was saved"
                )
        epochs, position = count(state, "epochs_begun"), count(state, "position")
        if epochs > LARGEST_EPOCH or position > len(self) or (epochs == 0 and position < len(self)):
            raise StateError(
                f"state has {epochs} epochs_begun and position {position}, of {len(self)} batches"
            )
        size = len(self._beliefs.masses)
        means, visits = (array(state, name, np.float64, (size,)) for name in ("means", "visits"))
        evidence = array(state, "evidence", np.float64, (2,))
        moments = array(state, "moments", np.float64, (3,))
        examples = array(state, "heard_examples", np.int64, (None,))
        weights, norms = (
            array(state, f"heard_{name}", np.float64, examples.shape) for name in ("weights", "norms")
        )
        carried = self._checked_carried(state, epochs)
        for name, values, most in (
            ("means", means, 1.01 * LARGEST**2),
            ("visits", visits, float(LARGEST_EPOCH * self._draws)),
            ("moments", moments, 1e10 * LARGEST**2),
        ):
            check(name, values, (values >= 0.0) & (values <= most), f"from 0 to {most}")
        check("evidence", evidence, np.isfinite(evidence) & ([True, evidence[1] >= 0.0]), "finite numbers")
        check("heard_weights", weights, (weights > 0.0) & (weights <= LARGEST), "finite and above 0")
        check("heard_norms", norms, ~(norms < 0.0) & ~np.isinf(norms), "finite and not negative, or nan")
        check("heard_examples", examples, np.isin(examples, self._shard), "examples of this sampler")
        used = count(state, "used") > 0
        self._beliefs.means, self._beliefs.visits, self._beliefs.evidence = means, visits, evidence
        self._moments, self._heard = moments, Feedback(examples, weights, norms)
        self._carried = carried
        self._loads += 1
        self._epoch, self._position, self._plan = epochs - 1, position, None
        self._used = used

    def _checked_carried(self, state: Mapping[str, Any], epochs: int) -> Carried:
        """Within the bounds of ``core.reshuffling``, with the least expected copies that p can have."""
        shape = self._shard.shape
        phases, debts = (array(state, name, np.float64, shape) for name in ("phases", "debts"))
        size = len(self._shard)
        check("phases", phases, np.abs(phases) <= FURTHEST_PHASE, f"at most {FURTHEST_PHASE} from 0")
        if abs(phases.sum() - 0.5 * size) > 0.5 + SUM_TOLERANCE * size:
            raise StateError(f"phases must sum to about {0.5 * size}, half their number, got {phases.sum()}")
        most = 2.0 / (LEAST_SHARE * expected_copies(self._prior[self._shard], self._draws))
        inside = (debts >= -1.01 * most) & (debts <= most + epochs)
        check("debts", debts, inside, "at least -2 / least n p, and at most that and the epochs")
        return Carried(phases, debts)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self._settings.items() if value != "none")
        return f"<AdaptiveBatchSampler({shown}): {self._epoch + 1} epochs begun>"


class TicketLoader:
    """A ``DataLoader`` that gives each batch its ticket: ``for batch, ticket in TicketLoader(loader)``.

    ``loader`` must have an ``AdaptiveBatchSampler`` as its ``batch_sampler``; workers and their prefetching
    change nothing. An epoch that was not run to its end is left by the next ``for``. A loop that was left so
    can't go on: it raises a CohortError when it asks for its next batch. Evaluate with a loader of its own:
    each loop over this one is an epoch.

    Each loop of a ``DataLoader`` draws a seed for its workers from torch's global generator, a resumed loop
    once more: give it a ``generator=`` of its own if a model with dropout must resume to the bit.

    A ``StatefulDataLoader`` of torchdata may be resumed by its own state, too. With workers that state is as
    old as the prefetched batches: the resumed batches are the same, but norms that were observed after it
    was taken are not in it. It is loaded when the next ``for`` begins; until then there is no ``epochs_done``
    and no ``state_dict``. The state of the ``TicketLoader`` has all norms, and is loaded at once.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        sampler = getattr(loader, "batch_sampler", None)
        if not isinstance(sampler, AdaptiveBatchSampler):
            raise ConfigurationError(
                "loader must be DataLoader(dataset, batch_sampler=...) with an AdaptiveBatchSampler, and "
                "without batch_size, shuffle and sampler, "
                f"got {type(loader).__name__} with {type(sampler).__name__} as its batch_sampler"
            )
        size = len(loader.dataset) if hasattr(loader.dataset, "__len__") else sampler.num_examples
        if size != sampler.num_examples:
            raise ConfigurationError(
                f"loader must have a dataset of {sampler.num_examples} examples, as many as its "
                f"AdaptiveBatchSampler, got {size}"
            )
        if not getattr(loader, "in_order", True):
            raise ConfigurationError("loader must have in_order=True, got False: tickets go by the order")
        if getattr(loader, "snapshot_every_n_steps", 1) != 1:
            raise ConfigurationError(
                "loader must have snapshot_every_n_steps=1, "
                f"got {loader.snapshot_every_n_steps}: tickets go by the order"  # type: ignore[attr-defined]
            )
        self.loader = loader
        self.sampler = sampler

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[tuple[Any, BatchTicket]]:
        """Batches as ``loader`` gives them, each with its ticket."""
        tickets: Iterator[BatchTicket] | None = None
        for batch in self.loader:
            tickets = tickets or self.sampler.tickets()
            ticket = next(tickets)
            ticket._plan.given = ticket.position + 1
            yield batch, ticket
            if ticket._plan.given < len(self):
                self.sampler._check_plan(ticket._plan)
        self.sampler._warn_if_not_weighed()

    @property
    def epochs_done(self) -> int:
        """How many epochs are over, run to their end or left: where a run that was saved anywhere goes on.

        ``for epoch in range(loader.epochs_done, 15)`` begins with what is left of an epoch. An epoch that you
        broke out of is left when the next ``for`` begins, or by ``leave``. Until then it is not over, and a
        state goes on with its rest. A look at one batch, ``next(iter(loader))``, begins an epoch, too.
        """
        epoch = self.sampler.epoch
        return max(epoch + (self._position() >= len(self)), 0)

    def _position(self) -> int:
        """How many batches of the epoch were given."""
        if getattr(self.loader, "next_iter_state", None) is not None:
            raise CohortError(
                f"{type(self.loader).__name__} loads its own state when its next loop begins; epochs_done "
                "and state_dict are there from then on. Save and load TicketLoader.state_dict() instead"
            )
        plan = self.sampler._plan
        return self.sampler._position if plan is None else plan.given

    def leave(self) -> None:
        """End the epoch that you broke out of: a state that is saved now goes on with the next one."""
        self.sampler.leave()

    def state_dict(self) -> dict[str, Any]:
        """That of the sampler at the last batch that was given, whatever the workers have asked for since.

        Tickets that wait for their feedback are lost: observe them before.
        """
        return self.sampler._state(self._position())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state; the next ``for`` gives the batches that are left of its epoch, if any."""
        self.sampler.load_state_dict(state_dict)


def _nothing_heard() -> Feedback:
    return Feedback(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))


def _world() -> tuple[int, int] | None:
    """The number of processes and this one's rank; None without ``torch.distributed``."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return torch.distributed.get_world_size(), torch.distributed.get_rank()


def _as_numpy(values: Norms) -> ArrayLike:
    """A tensor of any device and type as float64; anything else as it is."""
    return values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values


def _numpy_of(name: str, value: Any) -> Any:
    """A tensor of a state as an array; anything else as it is."""
    try:
        return value.detach().cpu().numpy() if isinstance(value, Tensor) else value
    except TypeError:  # a type that numpy does not have
        raise StateError(f"state has {name} of type {value.dtype}, which no state_dict gives") from None


def _checked_prior(prior: ArrayLike, num_examples: int) -> FloatArray:
    masses = real_numbers("prior", _as_numpy(prior), ConfigurationError).astype(np.float64)
    if masses.shape != (num_examples,):
        raise ConfigurationError(
            f"prior must have {num_examples} entries, one for each example, got shape {masses.shape}"
        )
    wrong = np.flatnonzero(~((masses >= SMALLEST_MASS) & (masses < np.inf)))
    if len(wrong):
        raise ConfigurationError(
            f"prior must be above 0 for every example, at least {SMALLEST_MASS}, or its loss would never "
            f"count, got {masses[wrong[0]]} for example {wrong[0]}"
        )
    if abs(masses.sum() - 1.0) > SUM_TOLERANCE:
        raise ConfigurationError(
            f"prior must sum to one, got a sum of {masses.sum()}; divide it by its sum, in float32 or float64"
        )
    return np.asarray(masses / masses.sum())


def _checked_groups(groups: ArrayLike, num_examples: int) -> IntArray:
    try:
        labels = np.asarray(groups.detach().cpu() if isinstance(groups, Tensor) else groups)
    except ValueError:  # lists of unequal lengths
        labels = np.asarray(None)
    if labels.dtype == object and all(isinstance(label, str) for label in labels.flat):  # as pandas has them
        labels = labels.astype(str)
    if labels.shape != (num_examples,) or labels.dtype.kind not in "iuU":
        raise ConfigurationError(
            f"groups must be {num_examples} whole numbers or strings, the group of each example, "
            f"got {labels.dtype} of shape {labels.shape}"
        )
    _, units = np.unique(labels, return_inverse=True)
    return units.astype(np.int64)


def _fingerprint(values: FloatArray | IntArray | None) -> str:
    """Enough of an array to notice another one."""
    return "none" if values is None else f"crc32 {zlib.crc32(np.ascontiguousarray(values).data):08x}"
