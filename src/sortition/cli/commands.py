"""All commands: importing one registers it."""

from sortition.cli import arena, bench, compare, reproduce, runs
from sortition.cli.app import app

__all__ = ["app", "arena", "bench", "compare", "reproduce", "runs"]
