"""Tests what every page must hold: links that resolve, Python that parses and names that exist."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import load_command_class

from tests.docs.markdown import PAGES, ROOT, anchors, blocks, links, read, without_blocks

COMMANDS = {"bootstrap_roles", "consume_queue", "relay_outbox", "runscheduler", "runworker", "salon_jobs"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for target in links(read(page)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.is_file(), f"{target} does not exist"
        assert not anchor or anchor in anchors(read(linked)), f"{target} names no heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_parses_and_imports_what_exists(page: Path) -> None:
    for block in blocks(read(page)):
        if block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.text, filename=f"{page.name}, block at line {block.line}")):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("salon_jobs"):
                module = importlib.import_module(node.module or "")
                for alias in node.names:
                    assert _has(module, alias.name), f"line {block.line}: {node.module} has no {alias.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_of_prose_is_longer_than_a_line_of_code(page: Path) -> None:
    may_be_long = ("|", "<", "!", "Default: ")
    prose = [line for line in without_blocks(read(page)).splitlines() if not line.lstrip().startswith(may_be_long)]
    assert not [line for line in prose if len(line) > 120]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist_and_take_the_options_that_examples_give_them(page: Path) -> None:
    for line in re.findall(r"manage\.py (.+)", "\n".join(_shell_blocks(page))):
        name, *words = shlex.split(line, comments=True)
        if name in COMMANDS:
            end = next((place for place, word in enumerate(words) if word in ("||", "|", "&&", ">")), len(words))
            load_command_class("salon_jobs", name).create_parser("manage.py", name).parse_args(words[:end])


def _shell_blocks(page: Path) -> Iterator[str]:
    return (block.text for block in blocks(read(page)) if block.language in ("sh", "console"))


def test_every_page_is_linked_from_the_first_one() -> None:
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
