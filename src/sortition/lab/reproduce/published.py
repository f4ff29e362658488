"""The published numbers that measured ones are set against (result files that the authors published)."""

from __future__ import annotations

from dataclasses import dataclass

ROUNDS = (100, 500, 1000)
TOLERANCE = 0.15
"""In log-loss; or one published standard deviation, if that is more."""


@dataclass(frozen=True)
class Published:
    """Log of the training loss after 100, 500 and 1000 rounds, mean of 10 runs, and what else there is."""

    panel: str
    label: str
    log_losses: tuple[float, float, float]
    spread: float
    """Standard deviation between runs, after 1000 rounds: the only one published, used for all three."""
    log_regret: float | None = None
    """Log of the cumulative regret after 1000 rounds; its spread was not published."""


PUBLISHED = (
    Published("σ = 3", "Uniform", (1.43, 0.21, -0.69), 0.70, 12.82),
    Published("σ = 3", "Optimal (oracle)", (1.10, -0.26, -1.18), 0.02),
    Published("σ = 3", "Adaptive-OSMD", (1.01, -0.27, -1.19), 0.06, 11.29),
    Published("σ = 10", "Uniform", (3.24, 3.18, 2.04), 1.77, 16.69),
    Published("σ = 10", "Optimal (oracle)", (0.99, -0.26, -1.02), 0.02),
    Published("σ = 10", "Adaptive-OSMD", (1.05, -0.25, -1.00), 0.05, 11.42),
)
"""Figure 1, authors' code: M = 100, K = 5, batches of 10, step 0.1, alpha = 0.4, T = 1000."""
