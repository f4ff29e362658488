"""The numbers that the authors published: result files beside their code, to three digits.

Means of ten runs, natural logarithms: the training loss after 100, 500 and 1000 rounds, and the cumulative
regret after 1000. All with M = 100, K = 5, batches of 10, step 0.1, T = 1000 and, but for Figure 3,
alpha = 0.4.
"""

from __future__ import annotations

from dataclasses import dataclass

LOSS_ROUNDS = (100, 500, 1000)


@dataclass(frozen=True)
class Published:
    """One line of a figure."""

    figure: str
    panel: str
    label: str
    log_losses: dict[int, float]
    """By round."""
    spread: float | None
    """Standard deviation of the log loss between runs after 1000 rounds, the only one published."""
    log_regret: float | None = None
    regret_spread: float | None = None


_LINES = {
    "uniform": ("fig1", "Uniform"),
    "optimal": ("fig1", "Optimal (oracle)"),
    "adaptive": ("fig1", "Adaptive-OSMD"),
    "mabs": ("fig2", "MABS"),
    "vrb": ("fig2", "VRB"),
    "without": ("fig7", "without replacement"),
}
_LOSS_AND_REGRET: dict[
    tuple[int, str], tuple[tuple[float, float, float], float, float | None, float | None]
] = {
    (1, "uniform"): ((1.487, -0.515, -2.124), 0.12, 11.723, 0.361),
    (1, "optimal"): ((1.327, -0.746, -2.191), 0.021, None, None),
    (1, "adaptive"): ((1.336, -0.757, -2.002), 0.571, 11.088, 0.285),
    (1, "mabs"): ((1.555, -0.544, -1.912), 0.556, 13.845, 1.928),
    (1, "vrb"): ((1.398, -0.655, -2.065), 0.18, 11.758, 0.723),
    (1, "without"): ((1.402, -0.651, -2.168), 0.101, 11.119, 0.456),
    (3, "uniform"): ((1.427, 0.207, -0.686), 0.696, 12.82, 0.717),
    (3, "optimal"): ((1.098, -0.261, -1.183), 0.024, None, None),
    (3, "adaptive"): ((1.006, -0.273, -1.193), 0.057, 11.291, 0.779),
    (3, "mabs"): ((1.341, -0.282, -1.256), 0.119, 13.014, 1.055),
    (3, "vrb"): ((1.105, -0.132, -1.078), 0.235, 12.365, 0.637),
    (3, "without"): ((1.177, -0.249, -1.183), 0.047, 11.416, 0.96),
    (10, "uniform"): ((3.237, 3.182, 2.043), 1.769, 16.693, 2.298),
    (10, "optimal"): ((0.988, -0.26, -1.02), 0.023, None, None),
    (10, "adaptive"): ((1.05, -0.254, -1.004), 0.049, 11.422, 1.513),
    (10, "mabs"): ((1.179, -0.268, -1.059), 0.069, 11.887, 0.99),
    (10, "vrb"): ((1.54, -0.067, -0.536), 0.983, 13.181, 0.857),
    (10, "without"): ((1.367, -0.239, -1.033), 0.049, 11.857, 1.556),
}
EXPLORATIONS = (0.01, 0.1, 0.4, 0.7, 0.9, 1.0)
"""alpha of Figure 3."""
_ALPHAS: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = {
    1: ((-2.04, -2.047, -2.161, -2.21, -2.152, -1.982), (11.733, 11.737, 11.364, 11.154, 11.139, 11.5)),
    3: ((-0.933, -1.046, -1.117, -1.174, -1.115, -1.034), (13.199, 12.611, 11.669, 11.426, 11.812, 13.049)),
    10: ((0.783, -0.843, -0.968, -0.983, -0.969, 2.649), (15.746, 13.36, 11.661, 11.622, 11.92, 16.7)),
}
"""The final log losses and log regrets, by sigma."""

PUBLISHED = tuple(
    Published(
        *(_LINES[name][0], f"σ = {sigma}", _LINES[name][1]),
        dict(zip(LOSS_ROUNDS, losses, strict=True)),
        spread,
        log_regret,
        regret_spread,
    )
    for (sigma, name), (losses, spread, log_regret, regret_spread) in _LOSS_AND_REGRET.items()
) + tuple(
    Published("fig3", f"σ = {sigma}", f"α = {alpha:g}", {1000: loss}, None, regret)
    for sigma, (losses, regrets) in _ALPHAS.items()
    for alpha, loss, regret in zip(EXPLORATIONS, losses, regrets, strict=True)
)
