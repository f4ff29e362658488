"""What a server never imports: problems, algorithms, the arena, the paper's figures, benchmarks and pages."""

from sortition.lab.federations import federation

__all__ = ["federation"]
