r"""Defences against clients that lie about their norms; ``docs/hostile-clients.md`` derives the bounds.

*Clip.* A norm counts for at most B(``clip_factor``, ``fence``), a robust bound by the norms of late: see
``outliers.py`` and ``yardstick.py``. The first ``trial_replies`` are too few to judge anybody by: they are
believed, and when there are more, judged, once; if lies were among them, all is learnt again without.

*Share.* Outliers, clients with a norm above the lower bound B(``outlier_factor``, ``outlier_fence``) of late,
hold together at most ``outliers_share`` of the distribution; or what they may well hold if the norms are
log-normal, or their part of all client weights, if that is more. Those with the highest ratio to their
weights are cut down first.

*Rise.* Between two draws, reports raise the probability of their sender by at most ``largest_rise``; what
they ask for beyond that it gets in the following rounds, another such factor in each, heard again or not.

*Cap.* Nobody's probability exceeds ``largest_probability``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sortition.core.validation import fraction, positive_number, whole_number

FACTORS = ("clip_factor", "largest_rise", "outlier_factor")
LONGEST_TRIAL = 5000
"""Older norms are forgotten: a longer trial would be judged by others than its own."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Which defences a sampler has: see ``samplers/guard.py``. ``guard=None`` is the paper to the letter.

    ``Guard(outliers_share=0.2, clip_factor=20)`` leaves liars less, and costs federations with a few honest
    clients of very large norms more: ``docs/hostile-clients.md`` has the figures.
    """

    clip_factor: float = 100.0
    fence: float = 4.0
    largest_rise: float = 10.0
    largest_probability: float = 1.0
    outlier_factor: float = 5.0
    outlier_fence: float = 1.0
    outliers_share: float = 0.5
    trial_replies: int = 50

    def __post_init__(self) -> None:
        numbers = {
            **{n: positive_number(n, getattr(self, n), above=1.0) for n in FACTORS},
            **{n: positive_number(n, getattr(self, n)) for n in ("fence", "outlier_fence")},
            **{n: fraction(n, getattr(self, n)) for n in ("largest_probability", "outliers_share")},
            "trial_replies": whole_number("trial_replies", self.trial_replies, least=0, most=LONGEST_TRIAL),
        }
        for name, number in numbers.items():
            object.__setattr__(self, name, number)  # 100 and 100.0 are one setting


@dataclass(frozen=True, slots=True)
class Suspect:
    """A client whose norms hit the clip."""

    client: int
    hits: int
    """How many of its reports were clipped."""
    largest_excess: float
    """How many times the bound the worst of them was (inf where no double can hold it)."""
