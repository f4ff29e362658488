"""What the tests of the ledger share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a run goes."""
    return tmp_path / "run.db"
