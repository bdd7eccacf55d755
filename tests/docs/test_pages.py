"""Tests what every page must hold: links that resolve, Python that parses and names that exist."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from tests.docs.markdown import PAGES, ROOT, anchors, blocks, links, read, without_blocks


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


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {(ROOT / target).resolve() for target in links(read("README.md")) if not target.startswith("https://")}
    assert {page for page in PAGES if page.name != "README.md"} <= linked


def _has(module: object, name: str) -> bool:
    try:
        getattr(module, name)
    except AttributeError:
        package = getattr(module, "__name__", "")
        return importlib.util.find_spec(f"{package}.{name}") is not None
    return True
