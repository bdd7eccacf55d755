"""Runs the benchmark with forks of `tests.interpreter`, save where it measures the start of an interpreter.

``python -m tests.forked_benchmarks WORDS`` takes what ``python -m benchmarks`` takes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.__main__ import main
from tests.interpreter import Process, run_python, start_python

_MODULE = "import runpy, sys; del sys.argv[0]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"


def _words(command: list[str]) -> list[str]:
    """Return the words after ``python``, where it runs a module a program that does."""
    return ["-c", _MODULE, *command[2:]] if command[1] == "-m" else command[1:]


class Forks:
    """Stands for the module subprocess."""

    DEVNULL, STDOUT, TimeoutExpired = subprocess.DEVNULL, subprocess.STDOUT, subprocess.TimeoutExpired

    @staticmethod
    def run(command: list[str], *, cwd: Path, env: dict[str, str], timeout: float, **_: Any) -> Any:
        return run_python(*_words(command), environment=env, folder=cwd, timeout_s=timeout)

    @staticmethod
    def Popen(command: list[str], *, cwd: Path, env: dict[str, str], stdout: Any, **_: Any) -> Process:  # noqa: N802
        log = stdout.fileno()
        return start_python(*_words(command), environment=env, stdout=log, stderr=log, folder=cwd, new_session=True)


if __name__ == "__main__":
    measured: Any = processes
    measured.subprocess = Forks
    sys.exit(main(sys.argv[1:]))
