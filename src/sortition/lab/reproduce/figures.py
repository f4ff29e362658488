"""The paper's eight figures: what is run for each, in both variants, and which numbers were published."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from sortition import ConfigurationError
from sortition.core.designs import Design
from sortition.lab.reproduce.published import EXPLORATIONS, PUBLISHED

FORMAT = 4
"""Raised when the same settings come to mean another run: older results are then not used."""

Variant: TypeAlias = Literal["text", "authors"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
SYNTHETIC = ("heterogeneous", "one-coordinate")
IMAGES = ("mnist", "kmnist", "fashion-mnist")
REPLAYED = "replayed"
"""The authors' data and their random numbers, for several lines in turn."""
REPLAYED_LINES: dict[str, tuple[str, ...]] = {
    "all": ("Uniform", "Optimal (oracle)", "Adaptive-OSMD", "MABS", "VRB"),
    "alphas": tuple(f"α = {exploration:g}" for exploration in EXPLORATIONS),
    "without-replacement": ("without replacement",),
}
"""The lines that one stream of random numbers serves, in turn; the names are samplers of ``RunSettings``."""
REPLAYS = {"fig1": "all", "fig2": "all", "fig3": "alphas", "fig7": "without-replacement"}

FIGURES = tuple(f"fig{number}" for number in range(1, 9))
SPREADS = (1.0, 3.0, 10.0)
COHORT_SIZE, STEP_SIZE = 5, 0.1
"""K and the step size of synthetic federations."""
STEP_SIZES = (0.01, 0.05, 0.1, 0.5, 1.0)
SCAFFOLD_STEP_SIZES = (0.001, 0.003, 0.01, 0.03, 0.1)
IMAGE_STEP_SIZES = {"mnist": 0.075, "kmnist": 0.075, "fashion-mnist": 0.03}
TUNING_REPEATS = 3
"""Repeats for choosing a step size; the other repeats are run at the chosen one."""
PROPORTIONAL = "Proportional (not in the paper)"

TOLERANCE = 0.15
"""In log-loss; or one published standard deviation, if that is more."""


@dataclass(frozen=True)
class RunSettings:
    """One sampler on one federation, once."""

    variant: Variant
    problem: str
    """One of ``SYNTHETIC`` or ``IMAGES``, or ``REPLAYED``."""
    sampler: str
    num_rounds: int
    cohort_size: int
    step_size: float
    seed: int
    spread: float = 0.0
    """sigma, or nu; of synthetic federations."""
    algorithm: Literal["sgd", "scaffold"] = "sgd"
    exploration: float = 0.4
    design: Design = "with_replacement"
    evaluate_every: int = 1
    repeats: int = 1
    """Repeats on one stream of random numbers, in a replay of the authors' runs."""
    images: str = ""
    """Digest of the images and labels, if the problem is made of images."""

    def plain(self) -> dict[str, Any]:
        """As a dictionary that JSON can hold."""
        return asdict(self)

    def name(self) -> str:
        """A short description.

        >>> RunSettings("text", "heterogeneous", "uniform", 10, 5, 0.1, seed=0, spread=1.0).name()
        'uniform on heterogeneous 1 (text, sgd, step 0.1, seed 0)'
        """
        problem = self.problem if self.problem in IMAGES else f"{self.problem} {self.spread:g}"
        how = f"{self.variant}, {self.algorithm}, step {self.step_size:g}, seed {self.seed}"
        return f"{self.sampler} on {problem} ({how})"

    def key(self) -> str:
        """A name for the results of these settings.

        >>> one = RunSettings("text", "heterogeneous", "uniform", 10, 5, 0.1, seed=0, spread=1.0)
        >>> two = RunSettings("text", "heterogeneous", "uniform", 10, 5, 0.1, seed=1, spread=1.0)
        >>> one.key() == two.key()
        False
        """
        text = json.dumps({"format": FORMAT, **self.plain()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def rounds_in_all(self) -> int:
        """How many rounds, and ticks, the run takes."""
        if self.problem != REPLAYED:
            return self.num_rounds
        return self.num_rounds * self.repeats * len(REPLAYED_LINES[self.sampler])

    def regret_is_measured(self) -> bool:
        """Whether all norms are computed in every round: on synthetic federations."""
        return self.problem in SYNTHETIC


@dataclass(frozen=True)
class FigureLine:
    """One curve of a panel: the repeats of one sampler, at one step size or at several to choose from."""

    variant: Variant
    panel: str
    label: str
    candidates: tuple[tuple[RunSettings, ...], ...]
    """For each step size, the runs of all repeats."""

    def tuning(self) -> tuple[RunSettings, ...]:
        """What is run first: all repeats, or some repeats of each step size to choose from."""
        if len(self.candidates) == 1:
            return self.candidates[0]
        return tuple(run for candidate in self.candidates for run in candidate[:TUNING_REPEATS])


@dataclass(frozen=True)
class Figure:
    """What a figure of the paper shows."""

    name: str
    title: str
    section: str
    claim: str
    """What the paper says one sees."""
    panels: str
    """What distinguishes the columns."""
    quantities: tuple[str, ...]
    """The rows: loss, regret, accuracy."""
    lines: tuple[FigureLine, ...]
    published: tuple[FigureLine, ...] = ()
    """Lines that have published numbers, with more repeats."""
    replayed: tuple[RunSettings, ...] = ()
    """The published runs with the authors' random numbers, one for each panel."""

    def runs(self) -> Iterator[RunSettings]:
        """All runs of the figure with our own random numbers."""
        for line in (*self.lines, *self.published):
            for candidate in line.candidates:
                yield from candidate


@dataclass(frozen=True)
class Scale:
    """How much is run: the paper's numbers, or a quick look at everything within a minute."""

    rounds: int = 1000
    repeats: int = 10
    image_repeats: int = 5
    published_repeats: int = 100
    """Repeats where numbers were published: a mean of only ten runs may be off by more than 0.15."""
    replayed_repeats: int = 10
    evaluate_images_every: int = 10
    step_sizes: int | None = None
    """How many of the step sizes are tried, smallest first; None for all."""


FULL = Scale()
QUICK = Scale(rounds=30, repeats=2, image_repeats=1, published_repeats=2, replayed_repeats=1, step_sizes=2)


def figure(
    name: str,
    variants: tuple[Variant, ...],
    scale: Scale = FULL,
    digests: Mapping[str, str] | None = None,
) -> Figure:
    """The figure called ``name``, with its settings as stated in the paper.

    ``digests`` are those of the image sets that are at hand: they are settings of a run too.
    """
    if name not in FIGURES:
        raise ConfigurationError(f"figure must be one of {', '.join(FIGURES)}, got {name!r}")
    title, section, claim, panels, quantities = _TEXTS[name]
    lines = tuple(line for variant in variants for line in _lines(name, variant, scale, digests or {}))
    published: tuple[FigureLine, ...] = ()
    replayed: tuple[RunSettings, ...] = ()
    if name in REPLAYS and "authors" in variants:
        replayed = tuple(
            RunSettings(
                *("authors", REPLAYED, REPLAYS[name], scale.rounds, COHORT_SIZE, STEP_SIZE),
                seed=0,
                spread=spread,
                repeats=scale.replayed_repeats,
            )
            for spread in SPREADS
        )
    if name == "fig1" and "authors" in variants:
        more = replace(scale, repeats=max(scale.published_repeats, scale.repeats))
        known = {(each.panel, each.label) for each in PUBLISHED if each.figure == name}
        published = tuple(
            line for line in _lines(name, "authors", more, {}) if (line.panel, line.label) in known
        )
    return Figure(name, title, section, claim, panels, quantities, lines, published, replayed)


def _lines(name: str, variant: Variant, scale: Scale, digests: Mapping[str, str]) -> Iterator[FigureLine]:
    if name == "fig6":
        yield from _image_lines(variant, scale, digests)
        return
    for spread in SPREADS if name != "fig5" else ():
        base = RunSettings(
            *(variant, "heterogeneous", "adaptive-osmd", scale.rounds, COHORT_SIZE, STEP_SIZE),
            seed=0,
            spread=spread,
        )
        panel = f"{'ν' if name == 'fig4' else 'σ'} = {spread:g}"
        for label, settings, step_sizes in _series(name, base, scale):
            repeats = tuple(
                tuple(replace(settings, step_size=step, seed=seed) for seed in range(scale.repeats))
                for step in step_sizes
            )
            yield FigureLine(variant, panel, label, repeats)


def _series(
    name: str, base: RunSettings, scale: Scale
) -> Iterator[tuple[str, RunSettings, tuple[float, ...]]]:
    """Label, settings and step sizes of each curve of a synthetic panel."""
    one = (base.step_size,)
    if name == "fig1":
        for label, sampler in (("Uniform", "uniform"), ("Optimal (oracle)", "optimal")):
            yield label, replace(base, sampler=sampler), one
        yield "Adaptive-OSMD", base, one
    elif name == "fig2":
        yield "Adaptive-OSMD", base, one
        for label in ("MABS", "VRB", "Avare"):
            yield label, replace(base, sampler=label.lower()), one
    elif name == "fig3":
        for exploration in EXPLORATIONS:
            yield f"α = {exploration:g}", replace(base, exploration=exploration), one
    elif name == "fig4":
        base = replace(base, problem="one-coordinate")
        yield "Adaptive-OSMD", base, STEP_SIZES[: scale.step_sizes]
        yield "p^IS (fixed)", replace(base, sampler="importance"), STEP_SIZES[: scale.step_sizes]
    elif name == "fig7":
        yield "with replacement", base, one
        yield "without replacement", replace(base, design="without_replacement"), one
    elif name == "fig8":
        base = replace(base, algorithm="scaffold")
        yield "SCAFFOLD, uniform", replace(base, sampler="uniform"), SCAFFOLD_STEP_SIZES[: scale.step_sizes]
        yield "SCAFFOLD, OSMD", replace(base, sampler="osmd"), SCAFFOLD_STEP_SIZES[: scale.step_sizes]


def _image_lines(variant: Variant, scale: Scale, digests: Mapping[str, str]) -> Iterator[FigureLine]:
    samplers = {
        "Uniform": "uniform",
        "Adaptive-OSMD": "adaptive-osmd",
        "MABS": "mabs",
        "VRB": "vrb",
        "Avare": "avare",
        PROPORTIONAL: "proportional",
    }
    for name in IMAGES:
        for label, sampler in samplers.items():
            runs = tuple(
                RunSettings(
                    variant,
                    name,
                    sampler,
                    scale.rounds,
                    10,
                    IMAGE_STEP_SIZES[name],
                    seed=seed,
                    evaluate_every=scale.evaluate_images_every,
                    images=digests.get(name, ""),
                )
                for seed in range(scale.image_repeats)
            )
            yield FigureLine(variant, name, label, (runs,))


_BOTH = ("loss", "regret")
_TEXTS: dict[str, tuple[str, str, str, str, tuple[str, ...]]] = {
    "fig1": (
        "Adaptive-OSMD against uniform and optimal sampling",
        "Section 7.1",
        "Uniform sampling is as good at σ = 1 and suffers as σ grows; "
        "Adaptive-OSMD stays close to the optimum.",
        "heterogeneity σ",
        _BOTH,
    ),
    "fig2": (
        "Adaptive-OSMD against MABS, VRB and Avare",
        "Section 7.2",
        "Adaptive-OSMD is best in loss and regret at every σ.",
        "heterogeneity σ",
        _BOTH,
    ),
    "fig3": (
        "Robustness to α",
        "Section 7.3",
        "Adaptive-OSMD does well as long as α is not too close to zero or one.",
        "heterogeneity σ",
        _BOTH,
    ),
    "fig4": (
        "A dynamic distribution against the fixed p^IS, step sizes tuned",
        "Section 7.4",
        "Adaptive-OSMD is better than p^IS at every ν.",
        "spread ν of the true coefficients",
        _BOTH,
    ),
    "fig5": (
        "Training images on each of the 500 clients",
        "Section 8",
        "Most clients have one image, a few a hundred.",
        "",
        ("clients",),
    ),
    "fig6": (
        "Images: training loss and validation accuracy",
        "Section 8",
        "Adaptive-OSMD is better than uniform sampling and the others on all three sets.",
        "image set",
        ("loss", "accuracy"),
    ),
    "fig7": (
        "Draws with and without replacement",
        "Appendix A.2",
        "With replacement is slightly better, but not significantly.",
        "heterogeneity σ",
        _BOTH,
    ),
    "fig8": (
        "SCAFFOLD with uniform sampling and with OSMD, local step sizes tuned",
        "Appendix E",
        "OSMD is marginally better where heterogeneity is high.",
        "heterogeneity σ",
        _BOTH,
    ),
}
