"""Tasks on a Ray cluster, in place of the processes of :mod:`sortition.lab.parallel` (package ``ray``)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sortition.core.errors import ConfigurationError
from sortition.lab.parallel import Tick

LOCAL = "local"


def _no_tick() -> None:
    """Progress on a cluster is counted by tasks."""


def run_on_ray(
    tasks: Sequence[Callable[[Tick], Any]], address: str, names: Sequence[str]
) -> Iterator[tuple[int, Any]]:
    """Call every task on the cluster at ``address``, one core each; give (place, result) as they finish.

    "local" starts a cluster on this machine, and stops it at the end. Otherwise the library and its data must
    be installed on the cluster's nodes. An error that a task raises is raised here, with its name.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigurationError("--ray needs the package ray: pip install ray") from None
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or it warns of a change to come
    try:
        ray.init(
            **({"include_dashboard": False} if address == LOCAL else {"address": address}),
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        said = str(error).splitlines()[0]
        raise ConfigurationError(f"no Ray cluster answers at {address!r}: {said}") from None
    try:
        call: Any = ray.remote(num_cpus=1)(lambda task: task(_no_tick))
        places = {call.remote(task): place for place, task in enumerate(tasks)}
        while places:
            (ready,), _ = ray.wait(list(places), num_returns=1)
            place = places.pop(ready)
            try:
                result = ray.get(ready)
            except Exception as error:
                error.add_note(f"in {names[place]}")
                raise
            yield place, result
    finally:
        ray.shutdown()
