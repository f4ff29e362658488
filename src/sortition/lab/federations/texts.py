"""Texts as windows of characters: Shakespeare's roles, and people who chat."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from sortition.core.types import IntArray
from sortition.lab.federations.data import Examples
from sortition.lab.federations.packaged import package_file, source_archive

SHAKESPEARE = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
CHITCHAT = "d2a5d0bf6acf354fef51f3af39cbece2220d3b8f6086b658c3d335105798312a"
FEWEST_CHARACTERS = 200
WINDOW = 20
"""Characters that the model reads; it predicts the one after each."""
ALPHABET = " abcdefghijklmnopqrstuvwxyz.,;:!?'-"
"""Letters are read in lower case; whatever is not here, and line ends, as a blank."""
PLACES = np.zeros(256, dtype=np.uint8)
PLACES[list(ALPHABET.encode())] = np.arange(len(ALPHABET))
POEMS = ("complaint", "pilgrim", "phoenix", "lucrece", "sonnets")
SPEAKER = re.compile(r"^(?:([A-Z][A-Za-z'&, -]{0,40}?)\.|([A-Z][A-Z' -]{2,40})) ?$")
NOT_SPEAKERS = re.compile(r"^(ACT|SCENE|Act|Scene|INDUCTION|PROLOGUE\b.*SCENE)\b")


def shakespeare() -> Examples:
    """The roles of the plays in the modern edition, which names each speaker on a line of its own.

    The package has the plays of the folio of 1623 as well. There one role has several abbreviations, and
    would be several clients.
    """
    archive = source_archive("shakespeare", "0.6", SHAKESPEARE)
    texts: dict[str, list[str]] = {}
    with tarfile.open(archive) as files:
        for member in files:
            play = member.name.rpartition("/")[2].removesuffix("_gut.txt")
            modern = "/shksprdata/texts/" in member.name and member.name.endswith("_gut.txt")
            if not modern or any(poem in play for poem in POEMS):  # Milton is there, too
                continue
            content = files.extractfile(member)
            assert content is not None
            for role, line in _spoken(content.read().decode("latin-1")):
                texts.setdefault(f"{play}/{role}", []).append(line)
    return windows({role: " ".join(lines) for role, lines in texts.items()})


def _spoken(play: str) -> Iterator[tuple[str, str]]:
    """Speaker and line, without what is in brackets."""
    role, after_blank = "", True
    for line in play.replace("\r", "").split("\n"):
        name = SPEAKER.match(line) if after_blank else None
        if name:
            said = name[1] or name[2]
            role = "" if NOT_SPEAKERS.match(said) else said.strip().upper()
        elif line.strip() and role and not line.lstrip().startswith("["):
            yield role, line.strip()
        after_blank = not line.strip()


def chitchat() -> Examples:
    """People of the Chit-Chat Challenge; their hour is that of most of their messages, in universal time."""
    path = package_file("chitchat_dataset", "dataset.json", CHITCHAT)
    texts: dict[str, list[str]] = {}
    hours: dict[str, IntArray] = {}
    for conversation in json.loads(path.read_bytes()).values():
        for turn in conversation["messages"]:
            for message in turn:
                person = message["sender"]
                texts.setdefault(person, []).append(message["text"])
                hours.setdefault(person, np.zeros(24, dtype=np.int64))[int(message["timestamp"][11:13])] += 1
    at = {person: int(counts.argmax()) for person, counts in hours.items()}
    return windows({person: " ".join(said) for person, said in texts.items()}, fewest=WINDOW + 1, hours=at)


def windows(
    texts: Mapping[str, str], *, fewest: int = FEWEST_CHARACTERS, hours: Mapping[str, int] | None = None
) -> Examples:
    """Windows side by side, each with the characters that follow; texts below ``fewest`` are left out.

    >>> examples = windows({"A": "ab" * 200, "B": "short"})
    >>> examples.inputs.shape, ALPHABET[examples.inputs[0, 0]], ALPHABET[examples.targets[0, 0]]
    ((19, 20), 'a', 'b')
    """
    inputs: list[NDArray[np.uint8]] = []
    targets: list[NDArray[np.uint8]] = []
    kept: list[str] = []
    for name, text in sorted(texts.items()):
        codes = encoded(text)
        if len(codes) < fewest:
            continue
        used = (len(codes) - 1) // WINDOW * WINDOW
        inputs.append(codes[:used].reshape(-1, WINDOW))
        targets.append(codes[1 : used + 1].reshape(-1, WINDOW))
        kept.append(name)
    counts = [len(rows) for rows in inputs]
    return Examples(
        np.concatenate(inputs),
        np.concatenate(targets),
        np.repeat(np.arange(len(kept)), counts),
        len(ALPHABET),
        None if hours is None else np.array([hours[name] for name in kept]),
    )


def encoded(text: str) -> NDArray[np.uint8]:
    """Characters as places in the alphabet; several blanks count as one.

    >>> encoded("A 9  b")
    array([1, 0, 2], dtype=uint8)
    """
    codes = PLACES[np.frombuffer(text.lower().encode("latin-1", "ignore"), dtype=np.uint8)]
    return np.asarray(codes[(codes > 0) | (np.roll(codes, 1) > 0)])
