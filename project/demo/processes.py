"""Commands run as real processes, each with only the URL it needs."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from project import settings

_COMMAND_TIMEOUT_S: Final = 180.0
_READY_TIMEOUT_S: Final = 180.0
_STOP_TIMEOUT_S: Final = 35.0


class DemoFailed(Exception):
    """Raised when the demo cannot continue."""


class Processes:
    """The demo's child processes and their log files. ``close`` ends all of them, by process ID, whatever happened."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, *arguments: str, environment: Mapping[str, str], stdin: str = "") -> str:
        """Run a command to its end and return its output. Raises DemoFailed with the end of the output."""
        process = subprocess.Popen(
            _command_line(arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=settings.BASE_DIR,
            env=_environment(environment),
            start_new_session=True,
            text=True,
        )
        try:
            output, _ = process.communicate(stdin, timeout=_COMMAND_TIMEOUT_S)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode:
            raise DemoFailed(f"manage.py {arguments[0]} ended with status {process.returncode}:\n{output[-3000:]}")
        return output

    def start(self, *arguments: str, environment: Mapping[str, str]) -> Path:
        """Start a long-running command; return its log file, which gets one JSON line per event."""
        path = self._logs / f"{arguments[0]}.log"
        with path.open("wb") as log:
            self._running[arguments[0]] = subprocess.Popen(
                _command_line(arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=settings.BASE_DIR,
                env=_environment(environment),
                start_new_session=True,
            )
        return path

    def wait_until_answers(self, command: str, url: str) -> None:
        """Wait until ``url`` answers 200. Raises DemoFailed when the process ends first, or after 10 s."""
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < deadline:
            self.check()
            if _answers(url):
                return
            time.sleep(0.05)
        raise DemoFailed(f"{command} was not ready within {_READY_TIMEOUT_S:.0f} s:\n{self._tail(command)}")

    def check(self) -> None:
        """Raise DemoFailed if a long-running process has ended on its own."""
        for command, process in self._running.items():
            if process.poll() is not None:
                raise DemoFailed(f"{command} ended with status {process.returncode}:\n{self._tail(command)}")

    def wait(self, command: str) -> None:
        """Wait until a long-running process ends."""
        self._running[command].wait()

    def stop(self, *commands: str) -> dict[str, int]:
        """Stop processes (SIGTERM), wait for their shutdown, and return their exit statuses."""
        processes = {command: self._running.pop(command) for command in commands}
        for process in processes.values():
            process.terminate()
        try:
            return {command: process.wait(_STOP_TIMEOUT_S) for command, process in processes.items()}
        except BaseException:
            for process in processes.values():
                process.kill()
                process.wait()
            raise

    def close(self) -> None:
        """End all processes: ask each, and kill those that do not end in time."""
        processes, self._running = self._running, {}
        for process in processes.values():
            process.terminate()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        try:
            for process in processes.values():
                process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass  # killed below
        finally:
            for process in processes.values():
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def __enter__(self) -> Self:
        """Return self; no process runs yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tail(self, command: str) -> str:
        return (self._logs / f"{command}.log").read_text(errors="replace")[-3000:]


def _command_line(arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    base = {"DJANGO_SETTINGS_MODULE": "project.demo.settings", "PYTHONUNBUFFERED": "1"}
    return {**settings.INHERITED_ENVIRONMENT, **base, **given}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - an http URL of our own
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
