"""Flower's real programs, each test with its own home, ports and processes, none of which outlives it."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PROBE = Path(__file__).parent / "probe"
BIN = Path(sys.executable).parent
HANGS = 600.0
"""Seconds after which a program that makes no progress is taken to hang."""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Flower:
    """Starts Flower's programs and ends them, with all of their children."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.notes = home / "notes"
        self.notes.mkdir(parents=True)
        self._running: list[subprocess.Popen[bytes]] = []
        self._ray = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # a socket's path has 107 characters at most
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": self._ray,
            "SORTITION_TEST_HOME": str(home),  # by which its processes are found in the end
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *command: str, log: str) -> subprocess.Popen[bytes]:
        """A program in the background, its output in ``log``."""
        with (self.home / log).open("ab") as output:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def call(self, *command: str) -> str:
        """A program that ends by itself; what it prints."""
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=HANGS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def connection(self, port: int, *, certificate: Path | None = None) -> None:
        """Tell ``flwr`` where the SuperLink is."""
        trust = "insecure = true" if certificate is None else f'root-certificates = "{certificate}"'
        text = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n{trust}\n'
        (self.home / "config.toml").write_text(text)

    def run_probe(self, *options: str, **settings: object) -> None:
        """Start the probe app."""
        config = " ".join(f"{name.replace('_', '-')}={json.dumps(value)}" for name, value in settings.items())
        config = f'notes="{self.notes}" {config}'
        self.start("flwr", "run", str(PROBE), "--stream", "--run-config", config, *options, log="run.log")

    def rounds(self) -> list[dict]:
        """What the probe has noted so far."""
        path = self.notes / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self, until: Callable[[], object], what: str) -> None:
        """Until something is true, or fail with the logs."""
        deadline = time.monotonic() + HANGS
        while not until():
            late = time.monotonic() > deadline or "raised an exception" in self.logs()
            assert not late, f"waited for {what}\n{self.logs()}"
            time.sleep(0.1)

    def logs(self, last: int = 3000) -> str:
        """The end of every log, or more of it."""
        return "\n".join(
            f"--- {log.name}\n{log.read_text()[-last:]}" for log in sorted(self.home.glob("*.log"))
        )

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL, to it and its children at once."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=HANGS)

    def kill_all(self) -> None:
        """SIGKILL to everything that this test has started, as a power cut would be."""
        while left := self._left():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._running:
                process.poll()
            time.sleep(0.1)

    def end(self) -> None:
        """End everything that this test has started: first as asked, then by force."""
        for process in self._running:
            with suppress(ProcessLookupError):
                process.terminate()
        deadline = time.monotonic() + 5
        while self._left() and time.monotonic() < deadline:
            for process in self._running:
                process.poll()
            time.sleep(0.1)
        for pid in self._left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._running:
            process.wait(timeout=HANGS)
        shutil.rmtree(self._ray, ignore_errors=True)

    def _left(self) -> list[int]:
        """Processes with our home in their environment, whatever session or parent they have now."""
        mark = f"SORTITION_TEST_HOME={self.home}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found


@contextmanager
def flower(home: Path) -> Iterator[Flower]:
    """Flower for the time of a test."""
    programs = Flower(home)
    try:
        yield programs
    finally:
        programs.end()


# Certificates and node keys, made anew for each test


def write_certificates(directory: Path) -> tuple[Path, Path, Path]:
    """A CA of our own and a server certificate for 127.0.0.1: paths of CA, certificate and key."""
    directory.mkdir()
    ca_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca_name, name = _name("Test CA"), _name("127.0.0.1")
    ca = (
        _builder(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    server = (
        _builder(name, ca_name, key)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(issuer, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    paths = directory / "ca.crt", directory / "server.pem", directory / "server.key"
    paths[0].write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(server.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths[2].write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    return paths


def write_node_key(path: Path) -> tuple[Path, Path]:
    """A P-384 key as ssh-keygen makes it: paths of the private and the public part."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    path.chmod(0o600)
    public = path.with_suffix(".pub")
    ssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public.write_bytes(key.public_key().public_bytes(*ssh))
    return path, public


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    today = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=2))
    )
