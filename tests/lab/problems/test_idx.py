"""IDX files: found, read, refused and downloaded."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import threading
from pathlib import Path

import numpy as np
import pytest

from sortition.core.errors import DataError
from sortition.lab.problems import idx

SHARED = Path(__file__).parents[4] / "shared" / "data"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def made_up(count: int = 700, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images of 4 x 4 whose brightest corner tells the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count).astype(np.uint8)
    images = rng.integers(0, 60, (count, 4, 4)).astype(np.uint8)
    images.reshape(count, 16)[np.arange(count), labels] = 250
    return images, labels


def put(directory: Path, part: str, images: np.ndarray, labels: np.ndarray, packed: bool = True) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for kind, number, array in (("images", 3, images), ("labels", 1, labels)):
        content = idx_bytes(array)
        path = directory / f"{part}-{kind}-idx{number}-ubyte"
        if packed:
            path = path.with_name(path.name + ".gz")
            content = gzip.compress(content)
        path.write_bytes(content)


class TestFiles:
    @pytest.mark.parametrize("packed", [True, False])
    def test_found_in_the_named_directory(self, tmp_path, packed):
        images, labels = made_up(20)
        put(tmp_path / "data" / "mnist", "t10k", images, labels, packed)
        found_images, found_labels, source = idx.load_images("mnist", tmp_path / "data")
        assert np.array_equal(found_images, images)
        assert np.array_equal(found_labels, labels)
        assert "t10k (20 images)" in source

    def test_files_directly_in_the_directory_must_be_those_of_the_set(self, tmp_path, monkeypatch):
        """All sets have the same names: what has the checksums of one is not taken for another."""
        images, labels = made_up(20)
        put(tmp_path / "data", "t10k", images, labels)
        sums = {
            path.name: hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
            for path in (tmp_path / "data").iterdir()
        }
        nowhere = "http://127.0.0.1:9/"
        monkeypatch.setitem(idx.IMAGE_SETS, "mnist", idx.ImageSet("mnist", nowhere, sums))
        monkeypatch.setitem(
            idx.IMAGE_SETS, "kmnist", idx.ImageSet("kmnist", nowhere, dict.fromkeys(sums, ""))
        )
        assert np.array_equal(idx.load_images("mnist", tmp_path / "data")[0], images)
        with pytest.raises(DataError, match="kmnist"):
            idx.load_images("kmnist", tmp_path / "data")

    def test_unpacked_files_directly_in_the_directory_are_not_taken(self, tmp_path, monkeypatch):
        put(tmp_path / "data", "t10k", *made_up(20), packed=False)
        nowhere = idx.ImageSet("mnist", "http://127.0.0.1:9/", idx.IMAGE_SETS["mnist"].checksums)
        monkeypatch.setitem(idx.IMAGE_SETS, "mnist", nowhere)
        with pytest.raises(DataError, match="mnist"):
            idx.load_images("mnist", tmp_path / "data")

    def test_a_digest_is_of_images_and_labels(self):
        images, labels = made_up(20)
        digests = {
            idx.images_digest(images, labels),
            idx.images_digest(images, labels[::-1]),
            idx.images_digest(images[::-1], labels),
            idx.images_digest(images.reshape(20, 2, 8), labels),
        }
        assert len(digests) == 4
        assert idx.images_digest(images.copy(), labels.copy()) in digests

    def test_the_larger_part_is_taken(self, tmp_path):
        put(tmp_path / "mnist", "t10k", *made_up(20))
        put(tmp_path / "mnist", "train", *made_up(30))
        assert len(idx.load_images("mnist", tmp_path)[0]) == 30

    @pytest.mark.parametrize("damage", [slice(0, 100), slice(0, 2), slice(4, None)])
    def test_damaged_files_are_refused(self, tmp_path, damage):
        put(tmp_path / "mnist", "t10k", *made_up(20), packed=False)
        path = tmp_path / "mnist" / "t10k-images-idx3-ubyte"
        path.write_bytes(path.read_bytes()[damage])
        with pytest.raises(DataError, match="t10k-images"):
            idx.load_images("mnist", tmp_path)

    def test_cut_off_archive_is_refused(self, tmp_path):
        put(tmp_path / "mnist", "t10k", *made_up(20))
        path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
        path.write_bytes(path.read_bytes()[:50])
        with pytest.raises(DataError, match="t10k-images"):
            idx.load_images("mnist", tmp_path)

    def test_labels_of_another_number_are_refused(self, tmp_path):
        images, labels = made_up(20)
        put(tmp_path / "mnist", "t10k", images, labels[:-1])
        with pytest.raises(DataError, match="labels"):
            idx.load_images("mnist", tmp_path)

    def test_no_such_set_or_directory(self, tmp_path):
        with pytest.raises(DataError, match="cifar"):
            idx.load_images("cifar")
        with pytest.raises(DataError, match="nowhere"):
            idx.load_images("mnist", tmp_path / "nowhere")

    @pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
    def test_debian_package_is_looked_at(self):
        images, _, _ = idx.load_images("fashion-mnist")
        assert images.shape == (60000, 28, 28)

    @pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data with the test sets")
    @pytest.mark.parametrize("name", ["mnist", "kmnist"])
    def test_shared_files_have_the_published_checksums(self, name):
        for path in (SHARED / name).iterdir():
            expected = idx.IMAGE_SETS[name].checksums[path.name]
            assert hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == expected


class TestDownload:
    @pytest.fixture
    def server(self, tmp_path):
        """A web server on this machine, with a made-up set."""
        put(tmp_path / "www", "train", *made_up(40))

        class Quiet(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *arguments, **settings):
                super().__init__(*arguments, directory=str(tmp_path / "www"), **settings)

            def log_message(self, *arguments):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as running:
            thread = threading.Thread(target=running.serve_forever)
            thread.start()
            yield f"http://127.0.0.1:{running.server_address[1]}/", tmp_path / "www"
            running.shutdown()
            thread.join()

    def serve(self, monkeypatch, url: str, files: Path, wrong: bool = False) -> None:
        checksums = {
            path.name: "0" * 32
            if wrong
            else hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
            for path in files.iterdir()
        }
        monkeypatch.setitem(idx.IMAGE_SETS, "mnist", idx.ImageSet("mnist", url, checksums))

    def test_downloaded_once_and_kept(self, server, monkeypatch):
        self.serve(monkeypatch, *server)
        assert len(idx.load_images("mnist")[0]) == 40
        self.serve(monkeypatch, "http://127.0.0.1:9/", server[1])  # nobody listens there
        assert len(idx.load_images("mnist")[0]) == 40

    def test_wrong_checksum_keeps_nothing(self, server, monkeypatch):
        self.serve(monkeypatch, *server, wrong=True)
        with pytest.raises(DataError, match="MD5"):
            idx.load_images("mnist")
        assert not idx.cache_directory("mnist").exists()

    def test_offline_says_what_to_do(self, server, monkeypatch):
        self.serve(monkeypatch, "http://127.0.0.1:9/", server[1])
        with pytest.raises(DataError, match="--data"):
            idx.load_images("mnist")
