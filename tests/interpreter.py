"""Python programs as processes of their own, forked by a server that saves them most of a second of imports.

A program finds itself where ``python PROGRAM …`` would have put it (`tests.interpreter_server`), except that
``sys.modules`` holds Django already, and that the hashes of strings have the server's seed. What measures imports
starts an interpreter by `run_command`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

ROOT: Final = Path(__file__).resolve().parent.parent
# An interpreter and its libraries read these when they start. A child is given the first three all the same.
_GIVEN: Final = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUNBUFFERED")
_READ_AT_START: Final = ("PYTHON", "COVERAGE_", "LANG", "LC_", "LD_", "MALLOC_", "OPENSSL_")


class Process(Protocol):
    """What tests use of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start_python(
    *words: str,
    environment: Mapping[str, str],
    stdout: int,
    stderr: int,
    stdin: int = 0,
    folder: Path = ROOT,
    new_session: bool = False,
) -> Process:
    """Start ``python WORDS``: a file with its arguments, or ``-c CODE``."""
    if not hasattr(os, "pidfd_open") or _read_at_start(environment) != _read_at_start(os.environ):
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env=dict(environment),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=new_session,
        )
    program = {"words": words, "environment": dict(environment), "folder": str(folder), "new_session": new_session}
    return _Forked(_server(), program, [stdin, stdout, stderr])


def run_python(
    *words: str, environment: Mapping[str, str], folder: Path = ROOT, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS`` to its end; return what it wrote."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = start_python(
            *words, environment=environment, stdout=stdout.fileno(), stderr=stderr.fileno(), folder=folder
        )
        try:
            status = process.wait(timeout_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
        for stream in (stdout, stderr):
            stream.seek(0)
        return subprocess.CompletedProcess(words, status, stdout.read(), stderr.read())


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run manage.py as a process of its own, as a user would; a worker has one process, which starts sooner."""
    settings = {"DJANGO_SETTINGS_MODULE": "project.settings", "WORKER_PROCESSES": "1"}
    surroundings = {**os.environ, **settings, **environment}
    return run_python("manage.py", *arguments, environment=surroundings)


def succeed(*arguments: str, **environment: str) -> str:
    """Run manage.py, which must succeed; return its standard output."""
    done = manage(*arguments, **environment)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def run_command(
    *words: str, environment: Mapping[str, str] | None = None, folder: Path = ROOT, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run any command to its end; return what it wrote."""
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def alive(pid: int) -> bool:
    """Return whether a process is alive; a zombie is not (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(_READ_AT_START) and name not in _GIVEN
    }


@functools.cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.interpreter_server", str(theirs.fileno())],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name not in _GIVEN[1:]},
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


class _Forked:
    """Child of the server, which waits for it and sends its exit status."""

    def __init__(self, server: socket.socket, program: Mapping[str, Any], streams: Sequence[int]) -> None:
        connection, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(server, [b"!"], [theirs.fileno(), *streams])
        connection.sendall(json.dumps(program).encode() + b"\n")
        pid, [self._process], _, _ = socket.recv_fds(connection, 16, 1)
        self.pid = int(pid)
        self._status: int | None = None
        self._lock = threading.Lock()
        self._answer = connection.detach()
        for descriptor in (self._process, self._answer):
            weakref.finalize(self, os.close, descriptor)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        if self._status is None:
            ended = select.poll()
            ended.register(self._answer, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            with self._lock:
                if self._status is None:
                    self._status = int(os.read(self._answer, 16))
        assert self._status is not None
        return self._status

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
