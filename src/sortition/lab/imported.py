"""Code of users: found by name, ``package.module:factory``, and named when it raises an error."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sortition.core.errors import ConfigurationError, SortitionError

EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "sklearn": "experiments",
    "scipy": "experiments",
    "cloudpickle": "experiments",
    "vl_convert": "reports",
    "torch": "torch",
}
"""Packages that an extra installs: the command line names it if one is missing."""
NOT_THEIRS = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    "<frozen",
    "<string",
    "<__array",
)
"""Where code is that a user did not write."""


def imported(option: str, name: str) -> Callable[..., Any]:
    """The callable that ``name`` means; ``option`` is what an error is about.

    Modules in the current directory are found, too.

    >>> imported("samplers", "sortition.lab.contestants:avare").__name__
    'avare'
    """
    module, colon, factory = name.partition(":")
    if not colon:
        raise ConfigurationError(f"{option} must be module:factory, as in clinics:Clinics, got {name!r}")
    if not module or module.startswith(".") or "/" in module or module.endswith(".py"):
        raise ConfigurationError(
            f"{option} must be module:factory, as in clinics:Clinics for clinics.py in the current "
            f"directory, got {name!r}"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        loaded = importlib.import_module(module)
    except Exception as error:
        absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        if absent:
            raise ConfigurationError(f"{option}: {name!r} can't be found: {error}") from error
        raise ConfigurationError(f"{option}: importing {module!r} raised {in_one_line(error)}") from error
    try:
        found: Any = getattr(loaded, factory)
    except AttributeError as error:
        raise ConfigurationError(f"{option}: {name!r} can't be found: {error}") from error
    if not callable(found):
        raise ConfigurationError(f"{option}: {name!r} must be a function or a class, got {found!r}")
    factory_found: Callable[..., Any] = found
    return factory_found


def in_one_line(error: Exception) -> str:
    r"""The kind of an error, and what it says.

    >>> in_one_line(ValueError("one\ntwo"))
    'ValueError: one two'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """An error that code of the user's raises becomes one line, which says where; ours stay as they are.

    ``what`` is theirs, as in "problem Clinics".
    """
    try:
        yield
    except SortitionError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if not frame.filename.startswith(NOT_THEIRS)]
        if not theirs:
            raise
        file, line, function, _ = theirs[-1]
        raise ConfigurationError(
            f"{Path(file).name}, line {line}, in {function}: {in_one_line(error)} ({what})"
        ) from error
