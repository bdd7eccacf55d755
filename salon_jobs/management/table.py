"""Writes rows as a table for people."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align the first column to the left and the others to the right; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join([cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))])
        for cells in rows
    )
    return "\n".join(lines)


def printable(text: str) -> str:
    """Return the text with a question mark for each character that could command the terminal; in one line."""
    return "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))
