"""The arena: every sampler against every environment, in replay and in closed loop."""

from sortition.lab.arena.environments import ENVIRONMENTS, environments_of
from sortition.lab.arena.replay import replay, summarise
from sortition.lab.arena.tournament import Arena, Score, find_contestant, run_closed_loop, run_replay
from sortition.lab.arena.trace import SPLITS, Environment, Split, Trace, Training

__all__ = [
    "ENVIRONMENTS",
    "SPLITS",
    "Arena",
    "Environment",
    "Score",
    "Split",
    "Trace",
    "Training",
    "environments_of",
    "find_contestant",
    "replay",
    "run_closed_loop",
    "run_replay",
    "summarise",
]
