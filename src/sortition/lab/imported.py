"""Code of users, found by name: ``package.module:factory``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from sortition.core.errors import ConfigurationError


def imported(option: str, name: str) -> Callable[..., Any]:
    """The callable that ``name`` means; ``option`` is what an error is about.

    Modules in the current directory are found, too.

    >>> imported("samplers", "sortition.lab.contestants:avare").__name__
    'avare'
    """
    module, colon, factory = name.partition(":")
    if not colon:
        raise ConfigurationError(f"{option} must be module:factory, as in clinics:Clinics, got {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: :x and .a:b
        if not module or module.startswith(".") or "/" in module or module.endswith(".py"):
            raise ConfigurationError(
                f"{option} must be module:factory, as in clinics:Clinics for clinics.py in the current "
                f"directory, got {name!r}"
            ) from error
        raise ConfigurationError(f"{option}: {name!r} can't be found: {error}") from error
    except Exception as error:  # the module itself is at fault
        said = " ".join(str(error).split())
        raise ConfigurationError(
            f"{option}: importing {module!r} raised {type(error).__name__}: {said}"
        ) from error
    if not callable(found):
        raise ConfigurationError(f"{option}: {name!r} must be a function or a class, got {found!r}")
    factory_found: Callable[..., Any] = found
    return factory_found
