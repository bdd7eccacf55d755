"""Tests what every page must hold: links that resolve, Python that parses and names that exist."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from django.core.management import load_command_class

from tests.docs.markdown import PAGES, ROOT, anchors, blocks, links, read, without_blocks

COMMANDS = {"bootstrap_roles", "consume_queue", "relay_outbox", "runscheduler", "runworker", "salon_jobs"}


EACH = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@EACH
def test_links_resolve(page: Path) -> None:
    for target in links(read(page)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.is_file(), f"{target} does not exist"
        assert not anchor or anchor in anchors(read(linked)), f"{target} names no heading"


@EACH
def test_python_parses_and_imports(page: Path) -> None:
    for block in blocks(read(page)):
        if block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.text, filename=f"{page.name}, block at line {block.line}")):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("salon_jobs"):
                module = importlib.import_module(node.module or "")
                for alias in node.names:
                    assert _has(module, alias.name), f"line {block.line}: {node.module} has no {alias.name}"


@EACH
def test_prose_lines_are_short(page: Path) -> None:
    may_be_long = ("|", "<", "!", "Default: ")
    prose = [line for line in without_blocks(read(page)).splitlines() if not line.lstrip().startswith(may_be_long)]
    assert not [line for line in prose if len(line) > 120]


@EACH
def test_example_commands_and_options_exist(page: Path) -> None:
    shell = [block.text for block in blocks(read(page)) if block.language in ("sh", "console")]
    for line in re.findall(r"manage\.py (.+)", "\n".join(shell)):
        name, *words = shlex.split(line, comments=True)
        if name in COMMANDS:
            end = next((place for place, word in enumerate(words) if word in ("||", "|", "&&", ">")), len(words))
            load_command_class("salon_jobs", name).create_parser("manage.py", name).parse_args(words[:end])


def test_first_page_links_every_page() -> None:
    first = ROOT / "docs" / "index.md"
    linked = {(first.parent / target.partition("#")[0]).resolve() for target in links(read(first))}
    assert set(PAGES) - {first, ROOT / "README.md"} <= linked


def _has(module: object, name: str) -> bool:
    try:
        getattr(module, name)
    except AttributeError:
        package = getattr(module, "__name__", "")
        return importlib.util.find_spec(f"{package}.{name}") is not None
    return True
