"""Flower's real programs, each test with its own home, ports and processes, none of which outlives it."""

from __future__ import annotations

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

PROBE = Path(__file__).parent / "probe"
BIN = Path(sys.executable).parent


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
            timeout=60,
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

    def wait(self, until: Callable[[], object], seconds: float, what: str) -> None:
        """Until something is true, or fail with the logs."""
        deadline = time.monotonic() + seconds
        while not until():
            late = time.monotonic() > deadline or "raised an exception" in self.logs()
            assert not late, f"waited up to {seconds} s for {what}\n{self.logs()}"
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
        process.wait(timeout=10)

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
            process.wait(timeout=10)
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
