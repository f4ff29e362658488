"""IDX files, the format of MNIST and its kin: reading, finding, downloading."""

from __future__ import annotations

import gzip
import hashlib
import os
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sortition.core.errors import DataError

DOWNLOAD_SECONDS = 30
PARTS = ("train", "t10k")
"""The two parts of a set, the larger first; either is enough."""


@dataclass(frozen=True)
class ImageSet:
    """Where the files of an image set can be downloaded, and their MD5 sums as published there."""

    name: str
    url: str
    checksums: dict[str, str]
    packaged: Path | None = None
    """Where a Debian package puts them."""


IMAGE_SETS = {
    image_set.name: image_set
    for image_set in (
        ImageSet(
            "mnist",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            {
                "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
            },
        ),
        ImageSet(
            "kmnist",
            "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
            {
                "train-images-idx3-ubyte.gz": "bdb82020997e1d708af4cf47b453dcf7",
                "train-labels-idx1-ubyte.gz": "e144d726b3acfaa3e44228e80efcd344",
                "t10k-images-idx3-ubyte.gz": "5c965bf0a639b31b8f53240b1b52f4d7",
                "t10k-labels-idx1-ubyte.gz": "7320c461ea6c1c855c0b718fb2a4b134",
            },
        ),
        ImageSet(
            "fashion-mnist",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            {
                "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
            },
            packaged=Path("/usr/share/datasets/fashion-mnist"),
        ),
    )
}


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array of unsigned bytes in an IDX file, compressed or not."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} can't be read as an IDX file: {error}") from None
    dimensions = content[3] if len(content) > 4 else 0
    start = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(content[4:start], dtype=">i4").tolist())
    if content[:3] != b"\x00\x00\x08" or not dimensions or len(content) - start != np.prod(shape):
        raise DataError(
            f"{path} must be a complete IDX file of unsigned bytes; its {len(content)} bytes are not"
        )
    return np.frombuffer(content[start:], dtype=np.uint8).reshape(shape)


def load_images(name: str, directory: Path | None = None) -> tuple[NDArray[np.uint8], NDArray[np.uint8], str]:
    """Images (n, 28, 28), labels (n,), and where they came from.

    They are looked for in ``directory``/``name``, in the Debian package's directory, and in the cache of an
    earlier download. If they are in none of these, they are downloaded, and their checksums verified. All
    sets have the same file names, so files in ``directory`` itself are used only if they are compressed and
    have the checksums of this set.
    """
    if name not in IMAGE_SETS:
        raise DataError(f"image set must be one of {', '.join(IMAGE_SETS)}, got {name!r}")
    image_set = IMAGE_SETS[name]
    if directory is not None and not directory.is_dir():
        raise DataError(f"the data directory {str(directory)!r} does not exist")
    found = find(image_set, directory)
    if found is None:
        download(image_set, cache_directory(name))
        found = cache_directory(name), PARTS[0]
    place, part = found
    images, labels = read_idx(_file(place, part, "images")), read_idx(_file(place, part, "labels"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(
            f"{place} must hold one label for each image, got shapes {images.shape} and {labels.shape}"
        )
    return images, labels, f"{place.name}/{part} ({len(images):,} images)"


def find(image_set: ImageSet, directory: Path | None) -> tuple[Path, str] | None:
    """The first place that has images and labels of a part of the set, and the part's name; or None."""
    named = [] if directory is None else [directory / image_set.name, directory]
    packaged = [] if image_set.packaged is None else [image_set.packaged]
    for place in [*named, *packaged, cache_directory(image_set.name)]:
        for part in PARTS:
            files = [_file(place, part, kind) for kind in ("images", "labels")]
            if all(path.is_file() for path in files) and (
                place != directory or all(_md5(path) == image_set.checksums.get(path.name) for path in files)
            ):
                return place, part
    return None


def images_digest(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> str:
    """Equal for equal images and labels, whatever files they came from."""
    digest = hashlib.sha256(repr(images.shape).encode())
    for array in (images, labels):
        digest.update(array.tobytes())
    return digest.hexdigest()[:20]


def cache_directory(name: str) -> Path:
    """Where downloads are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "sortition" / name


def download(image_set: ImageSet, target: Path) -> None:
    """Download the training part of a set; a file is kept only if its checksum is right."""
    for kind in ("images", "labels"):
        name = _file(target, PARTS[0], kind).name.removesuffix(".gz") + ".gz"
        url = image_set.url + name
        try:
            with urllib.request.urlopen(url, timeout=DOWNLOAD_SECONDS) as response:
                content = response.read()
        except (urllib.error.URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise DataError(
                f"{image_set.name} was not found and could not be downloaded from {url} ({reason}); "
                f"put its files, {PARTS[0]}-* or {PARTS[1]}-*, into DIR/{image_set.name} "
                "and name DIR with --data"
                + (", or install Debian's dataset-fashion-mnist" if image_set.packaged else "")
            ) from None
        checksum = _md5(content)
        if checksum != image_set.checksums[name]:
            raise DataError(
                f"{url} should have the MD5 sum {image_set.checksums[name]} but has {checksum}; "
                "it was not kept"
            )
        target.mkdir(parents=True, exist_ok=True)
        partial = target / f".{name}.part"
        partial.write_bytes(content)
        partial.replace(target / name)


def _file(place: Path, part: str, kind: str) -> Path:
    """The file of a part; the compressed one if there is no other."""
    path = place / f"{part}-{kind}-idx{3 if kind == 'images' else 1}-ubyte"
    return path if path.is_file() else path.with_name(path.name + ".gz")


def _md5(content: Path | bytes) -> str:
    if isinstance(content, Path):
        content = content.read_bytes()
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
