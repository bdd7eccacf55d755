"""Follow a tutorial as a reader would: write its files, run its commands, and compare what they print.

A comment before a fenced block says what to do with it: ``write PATH``, ``append PATH``, ``environment``, ``run``,
``sql`` (as superuser on the server) or ``query`` (as superuser in the tutorial's database, compared with the table
that follows). In a ``run`` block, the lines after a command are lines that it must print; ``…`` stands for anything.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.databases import URLS
from tests.docs.markdown import ROOT, Block, blocks, rows
from tests.interpreter import run_command, run_python
from tests.settings import PASSWORD, url_for

_INHERITED: Final = ("HOME", "LANG", "LC_ALL", "TMPDIR")
_OPERATORS: Final = {"|", "||", "&", "&&", ";", "<", ">", ">>", "2>&1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Walkthrough:
    """One tutorial in one folder. ``names`` maps the page's database names to the test's, ``values`` its variables."""

    folder: Path
    superuser_url: str
    database_url: str
    values: Mapping[str, str]
    names: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60

    def follow(self, text: str) -> int:
        """Do every marked step in order; return how many there were. Fail with the step's line and output."""
        steps = [block for block in blocks(text) if block.action]
        for block in steps:
            self._do(block, text)
        return len(steps)

    def _do(self, block: Block, text: str) -> None:
        action, _, argument = block.action.partition(" ")
        match action:
            case "write" | "append":
                path = self.folder / argument
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a" if action == "append" else "w", encoding="utf-8") as file:
                    file.write(block.text)
            case "environment":
                assert {*re.findall(r"^export (\w+)=", block.text, re.MULTILINE)} == {*self.values}, block.line
            case "run":
                for command, expected in _commands(block.text):
                    self._run(command, expected, block.line)
            case "sql":
                self._execute(block.text)
            case "query":
                following = text.split(block.text, 1)[1]
                assert self._query(block.text) == rows(following.split("\n\n")[1]), f"line {block.line}"
            case _:
                raise AssertionError(f"line {block.line}: unknown step {block.action!r}")

    def _run(self, command: str, expected: list[str], line: int) -> None:
        # The health port of the tutorial's worker may be taken on a machine that runs tests.
        text = self._renamed(command).replace("runworker", "runworker --health-addr 127.0.0.1:0")
        options: Any = {"environment": self._environment(), "folder": self.folder, "timeout_s": self.timeout_s}
        match shlex.split(text):
            case ["python", *words] if "$" not in text and not _OPERATORS & {*words}:
                done = run_python(*words, **options)
            case _:
                done = run_command("bash", "-euo", "pipefail", "-c", text, **options)
        output = done.stdout + done.stderr
        shown = f"line {line}: {text}\n{output}"
        assert done.returncode == 0, shown
        printed = [each.strip() for each in output.splitlines()]
        for wanted in map(self._renamed, expected):
            pattern = ".*".join(map(re.escape, wanted.split("…")))
            assert any(re.fullmatch(pattern, each) for each in printed), f"{wanted!r} was not printed\n{shown}"

    def _environment(self) -> dict[str, str]:
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**environment, "PATH": path, "PYTHONPATH": str(ROOT), **self.values}

    def _execute(self, text: str) -> None:
        with psycopg.connect(self.superuser_url, autocommit=True) as connection:
            for statement in self._renamed(text).split(";\n"):
                if statement.strip():
                    connection.execute(statement.encode())

    def _query(self, text: str) -> list[list[str]]:
        with psycopg.connect(self.database_url) as connection:
            return [[str(value) for value in row] for row in connection.execute(text.encode()).fetchall()]

    def _renamed(self, text: str) -> str:
        for name, ours in self.names.items():
            text = re.sub(rf"\b{name}\b", ours, text)
        return text


def _commands(text: str) -> list[tuple[str, list[str]]]:
    commands: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        elif line.strip():
            commands[-1][1].append(line.strip())
    return commands


def of_roles(server: str, folder: Path, database: str, *, operator: bool = True, **values: str) -> Walkthrough:
    """Return how to follow a page on a server of its own, with the variables of bootstrap_roles and of each role."""
    urls = {name: url_for(role, database, server=server) for name, role in URLS.items()}
    if not operator:
        del urls["OPERATOR_DATABASE_URL"]
    passwords = ("MIGRATOR_PASSWORD", "APP_PASSWORD", "WORKER_RUNTIME_PASSWORD", "JOBS_OPERATOR_PASSWORD")
    return Walkthrough(
        folder=folder,
        superuser_url=server,
        database_url=url_for(None, database, server=server),
        values={"DATABASE_URL_BOOTSTRAP": server, **dict.fromkeys(passwords, PASSWORD), **urls, **values},
    )
