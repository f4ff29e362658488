"""What a server keeps beside the rounds of a run: its model, its optimiser, whatever a resumed run needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sortition.core.errors import ConfigurationError, LedgerError
from sortition.core.validation import whole_number
from sortition.ledger.encoding import Plain
from sortition.ledger.files import SealedFiles

PREFIX = "attachment_"
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


class Attachments:
    """The attachments of one run: plain values by name and round."""

    def __init__(self, files: SealedFiles) -> None:
        self._files = files

    def write(self, round_index: int, name: str, arrays: Plain, *, needed: int | None) -> None:
        """Keep them durably; of that name the last two written stay, and that of round ``needed``."""
        number, file_name = _number(round_index), _file_name(name)
        if not isinstance(arrays, Mapping):
            raise ConfigurationError(f"arrays must be a mapping of names to plain values, got {arrays!r}")
        try:
            self._files.write(file_name, number, arrays, needed=needed)
        except OSError as error:
            raise LedgerError(f"{self._files.directory} must be writable, got {error}") from error

    def read(self, round_index: int, name: str) -> dict[str, Any] | None:
        """What is there; None if nothing is."""
        number, file_name = _number(round_index), _file_name(name)
        try:
            return self._files.read(file_name, number)
        except FileNotFoundError:
            return None
        except LedgerError as error:
            raise LedgerError(f"{error}; {self._what_is_good(number, name)}") from error

    def _what_is_good(self, damaged: int, name: str) -> str:
        file_name = _file_name(name)
        good = []
        for number in self._files.numbers(file_name):
            with suppress(LedgerError, OSError):
                if number != damaged:
                    self._files.read(file_name, number)
                    good.append(number)
        if not good:
            return f'no other attachment "{name}" is good: put a copy of it there, or begin without it'
        calls = " and ".join(f'attachment({number}, "{name}")' for number in good)
        return f"put a copy of it there, or go on from another round: {calls} can be read"


def _number(round_index: Any) -> int:
    return whole_number("round_index", round_index, least=0)


def _file_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"name must be letters, digits and underscores, 64 at most, got {name!r}")
    return PREFIX + name
