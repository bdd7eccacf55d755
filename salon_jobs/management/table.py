"""Writes rows and texts for people. Whatever jobs and messages say, it commands no terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_LONGEST: Final = 60


def table(rows: Sequence[Sequence[object]]) -> str:
    """Align the first column to the left and the others to the right; the first row is the head. Nothing is a dash."""
    lines = [["-" if cell is None or cell == "" else printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))])
        for cells in lines
    )


def printable(text: str) -> str:
    """Return the text with a question mark for each character that could command the terminal; in one line."""
    return printable_lines(" ".join(text.split()))


def printable_lines(text: str) -> str:
    """Do the same, and leave lines and their indents."""
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text.expandtabs())


def shortened(text: str | None) -> str:
    """Cut off the end of a long text, such as an error's, that nobody copies from a table."""
    line = " ".join((text or "").split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
