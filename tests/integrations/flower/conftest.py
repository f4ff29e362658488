"""Flower without its telemetry, update checks and usage statistics, set before anything imports it."""

import os

import pytest

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@pytest.fixture(autouse=True)
def task_identity():
    """Messages carry the run and the node of the process that makes them: without a SuperLink, ours."""
    from flwr.supercore.task_identity import TaskIdentity

    before = TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    yield
    TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = before
