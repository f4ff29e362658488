"""For authors of samplers: one suite of promises, the one that ours are held to."""

from sortition.testing.promises import check_sampler

__all__ = ["check_sampler"]
