"""What of Flower must be there, and what of it is used that it does not promise to keep."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import sortition.integrations.flower as package
from sortition.integrations.flower._requirement import check_version

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
"""The modules of the message API that Flower documents."""

NOT_PUBLIC = {
    "identities.py": {"flwr.proto.node_pb2"},
    "secure_sum.py": {
        "flwr.common",
        "flwr.common.secure_aggregation.secaggplus_constants",
        "flwr.compat.common.recorddict_compat",
        "flwr.server",
        "flwr.server.workflow",
        "flwr.server.workflow.constant",
    },
    "strategy.py": {"flwr.server.workflow"},
}
"""Everything else. If a new version of Flower moves one of these, its file has to follow."""


def modules_of_flower(file):
    """The modules of Flower that a file imports anywhere."""
    tree = ast.parse(file.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return {name for name in names if name.partition(".")[0] == "flwr"}


def test_which_modules_that_are_not_public_are_imported():
    found = {
        file.name: used
        for file in Path(package.__file__).parent.glob("*.py")
        if (used := modules_of_flower(file) - PUBLIC)
    }
    assert found == NOT_PUBLIC


@pytest.mark.parametrize("version", ["1.37.9", "1.5", "0.99.1"])
def test_an_older_version_is_an_import_error_that_says_what_to_do(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with pytest.raises(ImportError, match=rf"1\.38 or newer, got {version}: pip install --upgrade"):
        check_version()


@pytest.mark.parametrize("version", ["1.38.0", "1.100", "2.0.0rc1", "1.41.0.dev20261101"])
def test_newer_versions_are_welcome(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    check_version()


def test_without_flower_the_import_says_what_to_install():
    """In a Python of its own, in which nothing of Flower can be found."""
    program = """
import importlib.metadata, sys
found = importlib.metadata.version
def version(name):
    if name == "flwr":
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)
importlib.metadata.version = version
sys.modules["flwr"] = None
import sortition.integrations.flower
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: sortition.integrations.flower needs Flower 1.38 or newer")
    assert "pip install 'sortition[flower]' (in a clone: pip install '.[flower]')" in last
