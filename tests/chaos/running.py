"""What every kind of chaos shares: its options, its servers and its processes."""

from __future__ import annotations

import argparse
import random
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.bench import prepare
from benchmarks.processes import ROOT
from benchmarks.server import Database, Server
from project.local.postgres import EmbeddedPostgres

ROLES: Final = ("migrator", "web", "worker", "operator")


def options_of(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser of what all programs take."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def new_passwords() -> dict[str, str]:
    return {role: secrets.token_urlsafe(24) for role in ROLES}


def serve(stack: ExitStack, **options: str) -> tuple[EmbeddedPostgres, Database]:
    """Start a server with a migrated database."""
    server = stack.enter_context(EmbeddedPostgres(options=options))
    database = stack.enter_context(Server(server.url, embedded=True, passwords=new_passwords()).database())
    prepare(database)
    return server, database


def start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own; its output goes to the end of a file."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
