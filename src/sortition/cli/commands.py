"""All commands: importing one registers it."""

from sortition.cli import bench, compare
from sortition.cli.app import app

__all__ = ["app", "bench", "compare"]
