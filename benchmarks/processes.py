"""Runs what is measured as processes of their own: actions that print one JSON object, and workers that are ended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from project import settings

ROOT: Final = settings.BASE_DIR
_ACTION_TIMEOUT_S: Final = 1800.0
_STOP_TIMEOUT_S: Final = 40.0


class ProcessFailed(RuntimeError):
    """A process that was to be measured failed."""


def environment(**more: str) -> dict[str, str]:
    """Return what every process gets: no secret but those in ``more``."""
    return {**settings.INHERITED_ENVIRONMENT, "DJANGO_SETTINGS_MODULE": "benchmarks.settings", **more}


def run(command: Sequence[str], env: Mapping[str, str], *, cwd: Path = ROOT) -> str:
    """Run a command to its end and return what it printed. Raises ProcessFailed with the end of what it said."""
    try:
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=_ACTION_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ProcessFailed(f"{' '.join(command)} took longer than {_ACTION_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise ProcessFailed(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def act(command: Sequence[str], env: Mapping[str, str], *, cwd: Path = ROOT) -> dict[str, float]:
    """Run a command to its end and return the JSON object in its last line. Raises ProcessFailed."""
    said = run(command, env, cwd=cwd).strip()
    try:
        figures: dict[str, float] = json.loads(said.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise ProcessFailed(f"{' '.join(command)} printed no figures:\n{said[-3000:]}") from error
    return figures


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules."""
    return [sys.executable, "-m", module, *arguments]


def manage(*arguments: str) -> list[str]:
    """Return the command that runs manage.py."""
    return [sys.executable, "manage.py", *arguments]


class Running:
    """Owns a process, or ``count`` of the same, from start to end; the output goes to ``log``. A context manager."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], log: Path, *, cwd: Path = ROOT, count: int = 1
    ) -> None:
        self.log = log
        self._command = " ".join(command)
        self.started_ns = time.monotonic_ns()
        with log.open("ab") as output:
            self._processes = [
                subprocess.Popen(
                    command,
                    cwd=cwd,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                for _ in range(count)
            ]

    @property
    def pids(self) -> list[int]:
        """Return the process ids."""
        return [process.pid for process in self._processes]

    @property
    def pid(self) -> int:
        """Return the id of the only process."""
        [pid] = self.pids
        return pid

    def check(self) -> None:
        """Raise ProcessFailed when one ended by itself."""
        for process in self._processes:
            if (status := process.poll()) is not None:
                text = self.log.read_text(errors="replace")[-3000:]
                raise ProcessFailed(f"{self._command} ended with {status}:\n{text}")

    def __enter__(self) -> Self:
        """Own a running process."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ask each to end, and kill it when it does not."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def descendants(pid: int) -> list[int]:
    """Return the ids of the children of a process and of theirs; none of what has ended (Linux)."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended since
            for child in map(int, path.read_text().split()):
                found += [child, *descendants(child)]
    return found


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessFailed(f"process {pid} shows no VmRSS")


def print_figures(**figures: float) -> None:
    """Print the figures of an action, as its last line."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
