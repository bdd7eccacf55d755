"""PostgreSQL server for one command: the one that the environment names, or an embedded one while the command runs."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from project.local.postgres import EmbeddedPostgres
from project.local.postgres_install import ServerFailed

VARIABLE = "DATABASE_URL_BOOTSTRAP"
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def main(arguments: Sequence[str]) -> int:
    """Run ``--run COMMAND …`` and return its exit status (128 + n after signal n, 127 if the command is unknown)."""
    parser = argparse.ArgumentParser(prog="python -m project.local.postgres", description=__doc__)
    parser.add_argument("--no-fsync", action="store_true", help="trade safety for speed; for tests")
    parser.add_argument("--programs", type=Path, metavar="FOLDER", help="programs of another version of PostgreSQL")
    parser.add_argument("--run", nargs=argparse.REMAINDER, required=True, metavar="COMMAND", help="command to run")
    options = parser.parse_args(arguments)
    if not options.run:
        parser.error("--run needs a command")
    command: list[str] = options.run
    try:
        if os.environ.get(VARIABLE):
            os.execvp(command[0], command)
        with EmbeddedPostgres(fsync=not options.no_fsync, programs=options.programs) as server:
            return _run(command, {**os.environ, VARIABLE: server.url})
    except FileNotFoundError:
        sys.stderr.write(f"{command[0]}: command not found\n")
        return 127
    except ServerFailed as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _run(command: list[str], environment: dict[str, str]) -> int:
    process = subprocess.Popen(command, env=environment)

    def forward(number: int, _: FrameType | None) -> None:
        if not (number in (signal.SIGINT, signal.SIGQUIT) and _at_terminal()):  # a terminal signals the whole group
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _at_terminal() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
