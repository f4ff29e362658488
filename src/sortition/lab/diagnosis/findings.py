r"""What a diagnosis says: the noise of a step under each choice, the rounds that it costs, and the verdict.

*The model.* A step along an aggregate with signal :math:`G = \|\sum_m \lambda_m g_m\|^2` and noise N, the
variance of the aggregate, lowers an L-smooth loss by at least :math:`\mu G - \frac{L \mu^2}{2} (G + N)`. At
the best step :math:`\mu = G / (L (G + N))` this is :math:`G^2 / (2 L (G + N))`. So the rounds that a stretch
of training takes, at steps tuned for each choice, are proportional to :math:`G + N` (the "gradient noise
scale" of McCandlish et al. 2018). N = S + B: S is caused by sampling, B by mini-batches, and stays with full
participation.

*The range.* If G is not known, it lies between 0 (noise decides everything) and what the norms allow,
:math:`G + B \le (\sum_m \sqrt{a_m})^2`. The ratio of G + N to that of uniform sampling, at both ends, is the
range of the rounds. At one small step for all choices noise decides nothing, and nothing is saved.

*Pilots.* A problem can be trained, so each choice is, several times, at a step of its own (``pilots.py``).
The logarithm of its rounds has a standard error; that of the model is off by about ``MODEL_ERROR``. The mean
of both has weights in inverse proportion to the squares of these, and the range is its t interval. It is open
above if the target is missed, or would be without one of the trainings. By formula these are 95%; over seeds
they held the truth in about 90% (``docs/research/diagnosis.md``).

*The verdict* is the simplest choice whose rounds, in the geometric middle of its range, are at most ``NEAR``
times those of the best choice. From a recorded run it is only given if it hardly depends on which rounds were
seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from sortition.core.types import FloatArray
from sortition.core.variance import optimal_probabilities
from sortition.lab.versions import versions

UNIFORM, PROPORTIONAL, ADAPTIVE, MEMORY = "uniform", "proportional", "adaptive", "adaptive with memory"
CHOICES = (UNIFORM, PROPORTIONAL, ADAPTIVE, MEMORY)
"""What one can do, the simplest first."""
BEST = "best possible"
"""What an oracle would do, who sees every norm before the draw."""
VERDICTS = {
    UNIFORM: "nothing to gain",
    PROPORTIONAL: "sample by size and be done",
    ADAPTIVE: "adaptive",
    MEMORY: "adaptive with memory",
}
IN_WORDS = {
    UNIFORM: "uniform sampling",
    PROPORTIONAL: "sampling by size",
    ADAPTIVE: "adaptive sampling",
    MEMORY: "adaptive sampling with a memory",
}
BY_SIZE = (
    ' Take ProportionalSampler(..., design="fixed_size"), which was measured: without a design it draws with '
    "replacement, and without guard=Guard() no update is clipped."
)
"""What is said of sampling by size: its default design is another one."""
NEAR = 1.05
"""A choice is as good as the best if it is expected to take at most this many times its rounds."""
MORE = 1.01
"""Adaptive batches with more than this share of a plain shuffle's variance do harm."""
SHUFFLE = " Use a plain shuffle."
"""The advice where adaptive batches gain nothing."""
MODEL_ERROR = 0.4
"""Standard deviation of the logarithm of the model's rounds, in the middle of the range."""
CONFIDENCE = 0.95
CANT_TELL, CANT_TELL_YET = "can't tell", "can't tell yet"
"""The verdict of a recorded run with a memory, and of a run or a problem that has too few rounds."""
LEAST_ROUNDS = 10
"""Fewer rounds of a recorded run, or of a problem, give no verdict."""
LEAST_HEARD = 0.5
"""With replies of fewer clients than this share, a recorded run has no verdict against adaptive sampling."""
RIGHT, SURE = 1.1, 0.9
"""A verdict of a recorded run is given if, in this share of the bootstrap, its choice takes at most so many
times the rounds of the best and, unless it is uniform sampling, fewer than uniform sampling."""
SAMPLES = 400
"""Of the bootstrap."""
MOST_ROUNDS = 100
"""Heterogeneity is computed for at most this many rounds, evenly spread."""
STEPS = 400
"""Of the search for the best fixed distribution."""


@dataclass(frozen=True)
class Heterogeneity:
    r"""The paper's measures (Section 4), over the models that were seen.

    .. math:: V(p, w) = \sum_m \frac{a_m}{p_m} - \Big\|\sum_m \lambda_m g_m\Big\|^2

    Where the signal is not known, it is taken as 0, and the measures are upper bounds.
    """

    uniform: float
    r""":math:`\zeta^2_\mathrm{unif}`: the largest V of uniform sampling."""
    fixed: float
    r""":math:`\zeta^2_\mathrm{fix}`: the least that the largest V of one fixed distribution can be."""
    dynamic: float
    r""":math:`\zeta^2_\mathrm{min}`: the largest V of the best distribution of each round."""
    fixed_share: float
    """The share that the best fixed distribution has in what the best moving one gains over uniform."""
    movement: float
    """Total variation of the best distribution from one row to the next, on average: 0 to 2; nan for one."""
    rounds_apart: int
    """Rounds from one row to the next."""
    signal_known: bool


def heterogeneity(feedback: FloatArray, signal: FloatArray | None, rounds_apart: int = 1) -> Heterogeneity:
    r"""The measures for ``feedback``, one row for each round that was measured.

    :math:`\zeta_\mathrm{fix}` is found by its dual: for weights :math:`\mu` of the rounds
    :math:`\min_p \sum_t \mu_t V_t(p) = (\sum_m \sqrt{\sum_t \mu_t a_{tm}})^2 - \sum_t \mu_t G_t`, which is
    concave in :math:`\mu`. Its maximum is approached by multiplicative weights.

    >>> found = heterogeneity(np.array([[1.0, 0.0], [0.0, 1.0]]), None)
    >>> round(found.uniform, 3), round(found.fixed, 3), round(found.dynamic, 3), found.movement
    (2.0, 2.0, 1.0, 2.0)
    """
    some = np.unique(np.linspace(0, len(feedback) - 1, MOST_ROUNDS).astype(int))
    a = feedback[some]
    known = signal is not None
    g = signal[some] if signal is not None else np.zeros(len(a))
    of_uniform, of_best = a.shape[1] * a.sum(axis=1), np.sqrt(a).sum(axis=1) ** 2
    scale = float(of_uniform.max())
    log_weights, lowest = np.zeros(len(a)), math.inf
    for step in range(1, STEPS + 1):
        weights = np.exp(log_weights - log_weights.max())
        best = optimal_probabilities(weights / weights.sum() @ a)
        values = _losses(a, best) - g
        lowest = min(lowest, float(values.max()))
        log_weights += 4.0 * values / (scale * math.sqrt(step))
    moves = [np.abs(p - q).sum() for p, q in pairwise(map(optimal_probabilities, feedback))]
    relative = a / of_uniform[:, None]
    mean_fixed = float(np.sqrt(relative.sum(axis=0)).sum() ** 2) / len(a)
    mean_dynamic = float(np.mean(of_best / of_uniform))
    gain = 1.0 - mean_dynamic
    return Heterogeneity(
        uniform=float(np.max(of_uniform - g)),
        fixed=lowest,
        dynamic=float(np.max(of_best - g)),
        fixed_share=(1.0 - mean_fixed) / gain if gain > 1e-9 else 1.0,
        movement=float(np.mean(moves)) if moves else math.nan,
        rounds_apart=rounds_apart,
        signal_known=known,
    )


def _losses(feedback: FloatArray, probabilities: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(feedback > 0.0, feedback / probabilities, 0.0).sum(axis=1))


@dataclass(frozen=True)
class Pilot:
    """What pilot trainings of a choice took, at its best step."""

    step_size: float
    trainings: int
    """At each step."""
    rounds: float | None = None
    """To the loss that uniform sampling has after 80% of the rounds; None if that was missed."""
    ratio: float | None = None
    """The same over uniform sampling's."""
    standard_error: float = 0.0
    """Of the logarithm of the ratio; all steps are found again without each training in turn. Of a ratio that
    is only known to be large, that of its bound."""
    bounded: bool = False
    """Whether the target is reached without any one of the trainings, too."""
    more_than: float | None = None
    """If the target was missed, the ratio is more than this."""


@dataclass(frozen=True)
class StepNoise:
    """The noise of a step, by choice and round."""

    num_clients: int
    cohort_size: int
    num_rounds: int
    """Rounds that were looked at; the arrays may have fewer, evenly spread."""
    sampling: Mapping[str, FloatArray]
    """S of each choice, for draws of fixed size."""
    replacing: Mapping[str, FloatArray]
    """The same for draws with replacement."""
    minibatch: FloatArray | None
    """B; None if it is not known."""
    signal: FloatArray | None
    """G; None if it is not known."""
    largest_signal: FloatArray
    """What the norms allow for G + B."""
    block: int = 1
    """Rounds whose mean is the unit of each: where a round is only estimated, it takes several."""
    estimated: bool = False
    """Whether the arrays are estimates from what was drawn."""
    heard: float = 1.0
    """The share of the clients that have replied at least once."""
    residuals: bool = False
    """Whether the norms are of residuals, what had changed since a memory: these bound no signal."""
    heterogeneity: Heterogeneity | None = None
    smallest_cohorts: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    """By baseline (uniform, proportional) and choice: the least K with the baseline's variance at K."""
    pilots: Mapping[str, Pilot] = field(default_factory=dict)
    """By choice, for a problem that was trained with each."""
    notes: tuple[str, ...] = ()
    of_examples: bool = False
    """Whether the clients are examples, the cohorts batches, and the rounds steps."""
    provisional: bool = False
    """Whether probabilities were judged by the norms that they were learnt from."""

    def ratio(self, choice: str, kind: str = "sampling") -> float:
        """What ``choice`` has for each 1 of uniform sampling, on average over the rounds.

        ``kind``: "sampling" S, "replacing" the same with replacement, over uniform draws of fixed size;
        "noise" S + B; "most" G + N with G as it is known, or 0; "least" with the largest G.
        """
        if kind == "least" and self.residuals:
            return 1.0  # the signal may be as large as it likes
        own, base = self._in_units(choice, kind).sum(axis=1)
        if base <= 0.0 and kind == "replacing" and np.any(self.replacing[choice] > 0.0):
            return math.inf  # everybody is drawn: only draws with replacement have a variance
        return float(own / base) if base > 0.0 else 1.0

    def _in_units(self, choice: str, kind: str) -> FloatArray:
        """Two rows: what ``choice`` and uniform sampling have in each round, in units of its block."""
        rest = np.zeros_like(self.largest_signal)
        if kind in ("noise", "most") and self.minibatch is not None:
            rest = rest + self.minibatch
        if kind == "most" and self.signal is not None:
            rest = rest + np.maximum(self.signal, 0.0)
        if kind == "least":
            rest = np.maximum(self.largest_signal, 0.0 if self.minibatch is None else self.minibatch)
        own = (self.replacing if kind == "replacing" else self.sampling)[choice] + rest
        base = self.sampling[UNIFORM] + rest
        unit, both = _block_means(base, self.block), np.stack([own, base])
        return np.divide(both, unit, out=np.zeros_like(both), where=unit > 0.0)

    def rounds(self, choice: str) -> float:
        """Rounds over those of uniform sampling, in the (geometric) middle of the range."""
        return self._middle_and_range(choice)[0]

    def rounds_range(self, choice: str) -> tuple[float, float]:
        """Rounds over those of uniform sampling, from and to: of the model, or of it and the pilots."""
        return self._middle_and_range(choice)[1]

    def _middle_and_range(self, choice: str) -> tuple[float, tuple[float, float]]:
        predicted = self.ratio(choice, "most"), self.ratio(choice, "least")
        middle = math.sqrt(max(predicted[0], 0.0) * max(predicted[1], 0.0))
        pilot = self.pilots.get(choice)
        if pilot is None or choice == UNIFORM:
            return middle, predicted
        known = pilot.more_than if pilot.ratio is None else pilot.ratio
        assert known is not None, "a pilot has a ratio or a bound"
        from scipy.special import stdtrit

        share = MODEL_ERROR**2 / (MODEL_ERROR**2 + pilot.standard_error**2)  # the pilots' weight
        mean = share * math.log(known) + (1.0 - share) * math.log(max(middle, np.finfo(float).tiny))
        quantile = float(stdtrit(pilot.trainings - 1, 0.5 + CONFIDENCE / 2))
        half = quantile * math.sqrt(share) * pilot.standard_error
        return math.exp(mean), (math.exp(mean - half), math.exp(mean + half) if pilot.bounded else math.inf)

    def standard_error(self, choice: str) -> float | None:
        """Of ``ratio(choice)``, by a bootstrap over the rounds; None if nothing was estimated."""
        if not self.estimated or choice == UNIFORM:
            return None
        return float(np.std(self._bootstrap[choice, "sampling"]))

    def certainty(self, choice: str) -> float:
        """The share of the bootstrap in which ``choice`` is right; 1 if nothing was estimated."""
        if not self.estimated:
            return 1.0
        drawn = self._bootstrap
        rounds = {
            name: np.sqrt(np.maximum(drawn[name, "most"], 0.0) * np.maximum(drawn[name, "least"], 0.0))
            for name in CHOICES
            if name in self.sampling
        }
        right = rounds[choice] <= RIGHT * np.min(list(rounds.values()), axis=0)
        return float(np.mean(right & ((choice == UNIFORM) | (rounds[choice] < 1.0))))

    @cached_property
    def _bootstrap(self) -> dict[tuple[str, str], FloatArray]:
        """Ratios by choice and kind, ``SAMPLES`` times over rounds that are drawn with replacement."""
        pairs = [(choice, kind) for choice in self.sampling for kind in ("sampling", "most", "least")]
        columns = np.concatenate([self._in_units(*pair) for pair in pairs]).T
        rng, count = np.random.default_rng(0), len(columns)
        sums = np.array(
            [
                np.bincount(rng.integers(count, size=count), minlength=count).astype(float) @ columns
                for _ in range(SAMPLES)
            ]
        )
        own, base = sums[:, ::2], sums[:, 1::2]
        ratios = np.divide(own, base, out=np.ones_like(own), where=base > 0.0)
        return dict(zip(pairs, ratios.T, strict=True))


def _block_means(values: FloatArray, length: int) -> FloatArray:
    """The mean of each round's block; the last block takes in what is left."""
    blocks = max(1, len(values) // length)
    parts = np.array_split(values, blocks)
    return np.concatenate([np.full(len(part), part.mean()) for part in parts])


def _share(part: FloatArray, rest: FloatArray, length: int) -> float:
    """The share of ``part`` in the sum of both: the mean over the rounds, each in units of its block.

    Blocks without noise do not count; where there is none at all, the share is 0.
    """
    whole = part + rest
    unit = _block_means(whole, length)
    some = unit > 0.0
    if not some.any():
        return 0.0
    return float(np.sum(part[some] / unit[some]) / np.sum(whole[some] / unit[some]))


def verdict_of(rounds: Mapping[str, float]) -> str:
    """The choice: the simplest whose rounds are at most ``NEAR`` times the fewest.

    >>> verdict_of({"uniform": 1.0, "proportional": 0.52, "adaptive": 0.5})
    'proportional'
    """
    least = min(rounds[choice] for choice in CHOICES if choice in rounds)
    return next(choice for choice in CHOICES if rounds.get(choice, math.inf) <= NEAR * least)


@dataclass(frozen=True)
class DiagnosisRow:
    """One choice, everything over uniform draws of fixed size."""

    choice: str
    variance: float
    """The sampling variance of the aggregate."""
    variance_with_replacement: float
    """The same for draws with replacement."""
    standard_error: float | None
    """Of ``variance``, where it was estimated."""
    sampling_share: float | None
    """The share of sampling in the noise of a step; None if mini-batch noise is not known."""
    fewest_rounds: float
    """At tuned steps, where noise decides; with pilots, the lower end of the interval."""
    most_rounds: float
    """At tuned steps, where the signal is as large as the norms allow; with pilots, the upper end."""
    smallest_cohort: int | None
    """The least K with the variance that uniform sampling has at today's K."""
    pilot: Pilot | None = None


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """Whether adaptive sampling helps. ``print`` it, or call ``page()`` and ``json()``."""

    source: str
    """What was diagnosed, in words."""
    noise: StepNoise
    seed: int | None = None
    """Of the draws; None if nothing was drawn."""
    versions: dict[str, str] = field(default_factory=versions)
    """Of the library, and of what it computes with."""

    @property
    def title(self) -> str:
        """What was diagnosed, and its size."""
        if self.noise.of_examples:
            return self.source
        return f"{self.source}: {self.noise.num_clients:,} clients, {self.noise.cohort_size} drawn a round"

    @property
    def rounds_in_words(self) -> str:
        """What is saved."""
        return "steps" if self.noise.of_examples else "rounds"

    @cached_property
    def choice(self) -> str | None:
        """The choice that the verdict names; None if it names none."""
        return None if self._doubt else self._likely

    @property
    def verdict(self) -> str:
        """*nothing to gain*, *sample by size and be done*, *adaptive*, *adaptive with memory*.

        Or *can't tell yet*, of a recorded run, of few rounds or of a part of an epoch; *can't tell* if a run
        had a memory.
        """
        if self.choice is None:
            return CANT_TELL if self.noise.residuals else CANT_TELL_YET
        return VERDICTS[self.choice]

    @cached_property
    def _likely(self) -> str:
        return verdict_of({choice: self.noise.rounds(choice) for choice in self._choices})

    @cached_property
    def _doubt(self) -> str:
        """Why there is no verdict; empty if there is one."""
        noise = self.noise
        if noise.residuals:
            return (
                "the run had a memory, so its norms are those of what had changed, not of updates. The "
                "figures are of sampling beside that memory. Record a run without one, or diagnose a problem."
            )
        if noise.provisional and noise.heard < LEAST_HEARD:
            return f"only {_percent(noise.heard)} of the examples were observed."
        if noise.signal is not None and noise.num_rounds < LEAST_ROUNDS:
            return f"fewer than {LEAST_ROUNDS} rounds are too few to learn from."
        if not noise.estimated:
            return ""
        if noise.num_rounds < LEAST_ROUNDS:
            return f"{noise.num_rounds} rounds with replies are too few, {LEAST_ROUNDS} are the least."
        if noise.heard < LEAST_HEARD and self._likely not in (ADAPTIVE, MEMORY):
            return f"only {_percent(noise.heard)} of the clients have replied, the sampler has yet to learn."
        if noise.certainty(self._likely) < SURE:
            return f"{noise.num_rounds} rounds are too few, other rounds could give another verdict."
        return ""

    @cached_property
    def rows(self) -> tuple[DiagnosisRow, ...]:
        """The choices, and the best possible."""
        shown = [*self._choices, *([BEST] if BEST in self.noise.sampling else [])]
        return tuple(self._row(choice) for choice in shown)

    @property
    def _choices(self) -> list[str]:
        return [choice for choice in CHOICES if choice in self.noise.sampling]

    def _row(self, choice: str) -> DiagnosisRow:
        noise = self.noise
        share = None
        if noise.minibatch is not None:
            share = _share(noise.sampling[choice], noise.minibatch, noise.block)
        smallest = noise.smallest_cohorts.get(UNIFORM, {}).get(choice)
        fewest, most = noise.rounds_range(choice)
        return DiagnosisRow(
            choice=choice,
            variance=noise.ratio(choice),
            variance_with_replacement=noise.ratio(choice, "replacing"),
            standard_error=noise.standard_error(choice),
            sampling_share=share,
            fewest_rounds=fewest,
            most_rounds=most,
            smallest_cohort=smallest,
            pilot=noise.pilots.get(choice),
        )

    @cached_property
    def sentence(self) -> str:
        """The answer."""
        if not self.noise.provisional or self.choice is None:
            return self._sentence
        return (
            f"{self._sentence} This is provisional: if norms differ by chance (augmentation, dropout), or "
            "change within an epoch, less is gained. Ask again after the next epoch."
        )

    @property
    def _sentence(self) -> str:
        noise, by_name = self.noise, {row.choice: row for row in self.rows}
        if noise.residuals:
            return f"Can't tell: {self._doubt}"
        if self.choice is None:
            likely = IN_WORDS[self._likely]
            advice = "Ask again after the first epoch." if noise.of_examples else "Record more rounds."
            advice = advice if noise.signal is None else "Train more rounds."
            return f"Can't tell yet: {self._doubt} {advice} So far {likely} looks best."
        own = by_name[self.choice]
        if self.choice == UNIFORM and noise.of_examples and by_name[ADAPTIVE].variance > MORE:
            return (
                f"Nothing to gain: adaptive batches have {by_name[ADAPTIVE].variance:.2f} times the variance "
                f"of a plain shuffle, as norms differ by chance or change too fast.{SHUFFLE}"
            )
        if self.choice == UNIFORM:
            best = min((by_name[c] for c in self._choices), key=lambda row: self.noise.rounds(row.choice))
            saved = 1.0 - self.noise.rounds(best.choice)
            advice = SHUFFLE if noise.of_examples else ""
            if saved < 0.01:
                return (
                    f"Nothing to gain: no choice saves as much as 1% of the {self.rounds_in_words} of "
                    f"uniform sampling.{advice}"
                )
            return (
                f"Nothing to gain: {IN_WORDS[best.choice]} would leave {_percent(best.variance)} of the "
                f"sampling variance, but even at tuned steps it saves about {_percent(saved)} of the "
                f"{self.rounds_in_words}.{advice}"
            )
        subject = IN_WORDS[self.choice].capitalize()
        low, high = 1.0 - own.most_rounds, 1.0 - own.fewest_rounds
        return (
            f"{subject} leaves {_percent(own.variance)} of the sampling variance of uniform sampling, and "
            f"saves {_range(low, high)} of the {self.rounds_in_words}, if the "
            f"{'step size' if noise.of_examples else 'step'} is tuned for each."
            + (BY_SIZE if self.choice == PROPORTIONAL else "")
        )

    @cached_property
    def facts(self) -> tuple[str, ...]:
        """What lies behind the answer, a sentence each."""
        noise, by_name = self.noise, {row.choice: row for row in self.rows}
        if noise.of_examples:
            return (
                "A range of steps has two ends: gradients that all point one way, which saves the least, and "
                "gradients that cancel out, which saves the most.",
                "This compares the noise of single batches, which counts where steps are as large as noise "
                "allows. Over an epoch the noise of a plain shuffle cancels out, that of adaptive batches "
                "over some epochs: at one small step size for both, a plain shuffle is as fast or faster. "
                "So raise the step, to two or three times its size.",
                *noise.notes,
            )
        if noise.pilots:
            said = [
                "In pilots every choice was trained several times, at the step that suits it: rounds over "
                "those of uniform sampling, with a standard error that includes the search for the step. The "
                "rounds at tuned steps are a mean of these and of what the noise predicts, by their "
                "precision, and an interval that holds the truth about 9 times in 10; after > it has no "
                "upper end: the loss aimed at was missed, or would be without one of the trainings.",
                "'best possible' is not trained, only predicted: a choice that was trained can be ahead of "
                "it.",
                "sortition compare --tune trains several federations, at steps that are factors of 2 apart "
                "(here 1.4): so its ratios differ.",
            ]
        else:
            said = [
                "A range of rounds has two ends: "
                + (
                    "updates much longer than their changes"
                    if noise.residuals
                    else "updates that all point one way"
                )
                + ", which saves the least, and updates that "
                + ("agree as measured." if noise.signal is not None else "cancel out, which saves the most.")
            ]
        said.append("At one small step for all choices, none is faster than another.")
        share = by_name[UNIFORM].sampling_share
        if math.isinf(by_name[UNIFORM].variance_with_replacement):
            said.append("Everybody is drawn, so there is no sampling variance but in draws with replacement.")
        elif share is None:
            said.append("Mini-batch noise is not known; what there is of it stays, whoever is drawn.")
        else:
            said.append(
                f"Sampling is {_percent(share)} of the noise of a step under uniform sampling, mini-batches "
                f"the rest" + (": the larger part stays, so fewer rounds are saved." if share < 0.5 else ".")
            )
        for baseline, found in noise.smallest_cohorts.items():
            if self.choice is None or (baseline == PROPORTIONAL and self.choice in (UNIFORM, PROPORTIONAL)):
                continue
            choice = self.choice if self.choice in found else ADAPTIVE
            least = found.get(choice)
            if least is not None and least < noise.cohort_size:
                said.append(
                    f"K = {least} in {IN_WORDS[choice]} has the variance of {IN_WORDS[baseline]} at "
                    f"K = {noise.cohort_size}."
                )
        if noise.heterogeneity is not None:
            said += _heterogeneity_in_words(noise.heterogeneity)
        if MEMORY not in noise.sampling:
            said.append("What a memory is worth can't be told from norms; diagnose a problem for that.")
        if noise.estimated:
            said.append(
                f"Estimated from those drawn in {noise.num_rounds} rounds; standard errors are in brackets."
            )
        return (*said, *noise.notes)

    @property
    def table(self) -> str:
        """The choices as plain text."""
        return _aligned(self.columns, self.cells())

    @property
    def columns(self) -> tuple[str, ...]:
        """Titles of the table."""
        share = () if self.noise.minibatch is None else ("sampling's share",)
        pilots = ("in pilots", "best step") if self.noise.pilots else ()
        if self.noise.of_examples:
            return ("choice", "variance", "with replacement", "steps at tuned step sizes")
        return ("choice", "variance", "with replacement", *share, *pilots, "rounds at tuned steps", "least K")

    def cells(self) -> list[tuple[str, ...]]:
        """The table's texts."""
        found = []
        for row in self.rows:
            error = "" if row.standard_error is None else f" (±{row.standard_error:.1g})"
            low, high = sorted((row.fewest_rounds, row.most_rounds))
            span = f"x{low:.2f} to x{high:.2f}" if math.isfinite(high) else f"> x{low:.2f}"
            span = "x1" if row.choice == UNIFORM else span
            share = () if row.sampling_share is None else (_percent(row.sampling_share),)
            mark = " <" if row.choice == self.choice else ""
            least = "-" if row.smallest_cohort is None else str(row.smallest_cohort)
            pilots: tuple[str, ...] = ()
            if self.noise.pilots:
                pilots = ("-", "-")
            if row.pilot is not None:
                pilots = _pilot_in_words(row.pilot, row.choice), f"{row.pilot.step_size:.3g}"
            found.append(
                (
                    row.choice + mark,
                    f"x{row.variance:.2f}{error}",
                    _times(row.variance_with_replacement),
                    *share,
                    *pilots,
                    span,
                    *(() if self.noise.of_examples else (least,)),
                )
            )
        return found

    def __repr__(self) -> str:
        head = f"{self.title}\nVerdict: {self.verdict.upper()}"
        if self.noise.provisional and self.choice is not None:
            head += ", provisionally"
        facts = "\n".join(f"- {fact}" for fact in self.facts)
        return f"{head}\n{self.sentence}\n\n{self.table}\n\n{facts}"

    def json(self) -> str:
        """Verdict, sentence, rows and facts; what is not known is null."""
        noise = self.noise
        sizes = ("num_examples", "batch_size") if noise.of_examples else ("num_clients", "cohort_size")
        content = {
            "source": self.source,
            sizes[0]: noise.num_clients,
            sizes[1]: noise.cohort_size,
            "num_rounds": noise.num_rounds,
            "verdict": self.verdict,
            "choice": self.choice,
            "sentence": self.sentence,
            "rows": [asdict(row) for row in self.rows],
            "smallest_cohorts": {name: dict(found) for name, found in noise.smallest_cohorts.items()},
            "heterogeneity": None if noise.heterogeneity is None else asdict(noise.heterogeneity),
            "facts": list(self.facts),
            "seed": self.seed,
            "versions": self.versions,
        }
        return json.dumps(_finite(content), indent=2, allow_nan=False) + "\n"

    def page(self) -> str:
        """A self-contained page to look at (HTML; extra ``reports``)."""
        from sortition.lab.reports.diagnosis_page import diagnosis_page

        return diagnosis_page(self)


def _heterogeneity_in_words(found: Heterogeneity) -> list[str]:
    bounds = "" if found.signal_known else "at most "
    said = [
        f"Variance of one draw in the worst round (the paper's heterogeneity): {bounds}{found.uniform:.3g} "
        f"with uniform sampling, {found.fixed:.3g} with the best probabilities that stay the same, "
        f"{found.dynamic:.3g} with the best ones of each round."
    ]
    if not math.isnan(found.movement):
        said.append(
            f"The best probabilities change by {found.movement:.2f} {_apart(found.rounds_apart)} (sum of all "
            "changes, 0 to 2; mini-batch noise adds to it). Probabilities that stay the same can have "
            f"{_percent(found.fixed_share)} of the gain."
        )
    return said


def _apart(rounds: int) -> str:
    return "a round" if rounds == 1 else f"in {rounds} rounds"


def _percent(share: float) -> str:
    return "less than 1%" if 0.0 < share < 0.01 else f"{round(100.0 * share)}%"


def _pilot_in_words(pilot: Pilot, choice: str) -> str:
    if pilot.ratio is None:
        return f"> x{pilot.more_than:.2f}"
    spread = "" if choice == UNIFORM else f" ±{pilot.ratio * pilot.standard_error:.2f}"
    return f"x{pilot.ratio:.2f}{spread}"


def _times(ratio: float) -> str:
    return f"x{ratio:.2f}" if math.isfinite(ratio) else "-"


def _range(low: float, high: float) -> str:
    low, high = sorted((low, high))
    if high < 0.01:
        return "less than 1%"
    if low <= 0.0:
        return f"at most {_percent(high)}"
    return f"{_percent(low)} to {_percent(high)}" if _percent(low) != _percent(high) else _percent(low)


def _aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[place]) for row in (columns, *rows)) for place in range(len(columns))]
    lines = []
    for row in (columns, *rows):
        first, *others = row
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
