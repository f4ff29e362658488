"""Images: IDX files found, read, refused and downloaded, and the federation on them."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import threading
from pathlib import Path

import numpy as np
import pytest

from sortition.core.errors import ConfigurationError, DataError
from sortition.lab.problems import idx
from sortition.lab.problems.images import AUTHORS_SIZES, ImageFederation, client_sizes

SHARED = Path(__file__).parents[3] / "shared" / "data"
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
        with pytest.raises(DataError, match="kmnist was found nowhere"):
            idx.load_images("kmnist", tmp_path / "data")

    def test_unpacked_files_directly_in_the_directory_are_not_taken(self, tmp_path, monkeypatch):
        put(tmp_path / "data", "t10k", *made_up(20), packed=False)
        nowhere = idx.ImageSet("mnist", "http://127.0.0.1:9/", idx.IMAGE_SETS["mnist"].checksums)
        monkeypatch.setitem(idx.IMAGE_SETS, "mnist", nowhere)
        with pytest.raises(DataError, match="mnist was found nowhere"):
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
        with pytest.raises(DataError, match=r"t10k-images.* must be an IDX file"):
            idx.load_images("mnist", tmp_path)

    def test_cut_off_archive_is_refused(self, tmp_path):
        put(tmp_path / "mnist", "t10k", *made_up(20))
        path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
        path.write_bytes(path.read_bytes()[:50])
        with pytest.raises(DataError, match="must be a readable IDX file"):
            idx.load_images("mnist", tmp_path)

    def test_labels_of_another_number_are_refused(self, tmp_path):
        images, labels = made_up(20)
        put(tmp_path / "mnist", "t10k", images, labels[:-1])
        with pytest.raises(DataError, match="as many labels as images"):
            idx.load_images("mnist", tmp_path)

    def test_no_such_set_or_directory(self, tmp_path):
        with pytest.raises(DataError, match=r"one of mnist, kmnist, fashion-mnist, got 'cifar'"):
            idx.load_images("cifar")
        with pytest.raises(DataError, match="must exist"):
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
        with pytest.raises(DataError, match=r"must have the MD5 sum 0+, got .*nothing was kept"):
            idx.load_images("mnist")
        assert not idx.cache_directory("mnist").exists()

    def test_offline_says_what_to_do(self, server, monkeypatch):
        self.serve(monkeypatch, "http://127.0.0.1:9/", server[1])
        with pytest.raises(DataError, match=r"could not be downloaded .* name DIR with --data"):
            idx.load_images("mnist")


class TestFederation:
    @pytest.fixture
    def federation(self) -> ImageFederation:
        return ImageFederation(*made_up(), num_clients=40, seed=2)

    def test_sizes_of_the_text_and_of_the_authors(self):
        assert client_sizes(500).sum() == 4825
        assert client_sizes(500, AUTHORS_SIZES).sum() == 5325

    def test_validation_shrinks_where_images_are_few(self):
        # 40 clients: 26 x 1 + 8 x 5 + 4 x 30 + 2 x 100 = 386 images
        assert ImageFederation(*made_up(800), num_clients=40).validation == 10
        assert ImageFederation(*made_up(500), num_clients=40).validation == 2
        with pytest.raises(ConfigurationError, match="at least 426"):
            ImageFederation(*made_up(400), num_clients=40)

    def test_gradient_is_that_of_finite_differences(self, federation):
        """Of a client with one image, whose mini-batch is all it has."""
        client = int(np.flatnonzero(federation.client_sizes == 1)[0])
        model = np.random.default_rng(1).normal(size=federation.initial_model().size)
        gradient = federation.updates(model, np.array([client]), 0)[0]
        width = 1e-2
        for place in (0, 37, 159):
            axis = width * np.eye(len(model))[place]
            rise = federation.client_losses(model + axis) - federation.client_losses(model - axis)
            assert gradient[place] == pytest.approx(rise[client] / (2 * width), abs=2e-3)

    def test_norms_without_gradients(self, federation):
        model = np.random.default_rng(1).normal(size=federation.initial_model().size)
        norms = np.linalg.norm(federation.updates(model, np.arange(40), 3), axis=1)
        assert federation.all_norms(model, 3) == pytest.approx(norms, rel=1e-3, abs=1e-5)

    def test_loss_weighs_clients_by_size(self, federation):
        model = np.random.default_rng(1).normal(size=federation.initial_model().size)
        assert federation.loss(model) == pytest.approx(
            float(federation.client_weights @ federation.client_losses(model)), rel=1e-5
        )

    def test_it_can_be_learnt(self, federation):
        model = federation.initial_model()
        for round_index in range(200):
            updates = federation.updates(model, np.arange(40), round_index)
            model = model - 1.0 * federation.client_weights @ updates
        assert federation.loss(model) < 0.5
        assert federation.accuracy(model) > 0.9
