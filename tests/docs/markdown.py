"""Files, fenced blocks, links, headings and tables of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
_BLOCK: Final = re.compile(
    r"^(?:<!-- test: (?P<action>[^\n]+?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_LINK: Final = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """Fenced block. ``action`` is what the comment before it asks of a test, empty without one."""

    action: str
    language: str
    text: str
    line: int


def read(page: str | Path) -> str:
    """Return the text of a page; relative paths start at the project's root."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(found["action"] or "", found["language"], found["text"], line)


def without_blocks(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


def links(text: str) -> list[str]:
    return [found["target"] for found in _LINK.finditer(_BLOCK.sub("", text))]


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings."""
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def section(text: str, heading: str) -> str:
    """Return the text under a heading, up to the next one of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    start = text.index(f"{heading}\n") + len(heading)
    end = re.compile(rf"^#{{1,{level}}} ", re.MULTILINE).search(text, start)
    return text[start : end.start() if end else len(text)]


def rows(text: str) -> list[list[str]]:
    """Return the cells of all table rows, without headers, rulers, backticks and escapes."""
    lines = [line.strip() for line in text.splitlines()]
    rulers = {number for number, line in enumerate(lines) if re.fullmatch(r"\|[|:\- ]+\|", line)}
    return [
        [cell.strip().replace("\\|", "|").strip("`") for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        for number, line in enumerate(lines)
        if line.startswith("|") and number not in rulers and number + 1 not in rulers
    ]
