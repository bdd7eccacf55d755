"""Colours, and widths of text in the columns of a terminal."""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_GAP: Final = 2
_NARROWEST: Final = 8
_WIDE: Final = 110
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|-")
_NUMBER: Final = re.compile(r"<?[\d,.]+\+?( (ms|s|min|h|d))?")


class Painted(NamedTuple):
    """Text with the name of its colour."""

    text: str
    colour: str


@dataclass(frozen=True, slots=True)
class Screen:
    """Terminal or file that text is laid out for. ``width`` is in columns; None, the default, means unlimited."""

    width: int | None = None
    colours: bool = False

    @classmethod
    def of(cls, stream: Any, options: Mapping[str, Any]) -> Screen:
        """Return the screen of a command's output; respects NO_COLOR, Django's --no-color and --force-color."""
        is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or options.get("no_color")
        is_plain = is_plain or os.environ.get("DJANGO_COLORS") == "nocolor" or not stream.isatty()
        width = shutil.get_terminal_size().columns if stream.isatty() else None
        return cls(width, not is_plain or bool(options.get("force_color")))

    @property
    def is_narrow(self) -> bool:
        """Whether less important columns of a table are left out."""
        return self.width is not None and self.width < _WIDE

    def paint(self, text: str, colour: str) -> str:
        """Return the text in a colour (or bold, or dim) where colours are shown."""
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self.colours and text and colour else text

    def clip(self, text: str) -> str:
        """Return a line that fits the screen; an ellipsis marks a cut end."""
        return text if self.width is None else _head(text, self.width)

    def wrap(self, text: str, *, indent: int, lines: int) -> list[str]:
        """Return the text as at most ``lines`` indented lines that fit the screen; an ellipsis marks a cut end."""
        if self.width is None:
            return [" " * indent + text]
        width, wrapped = self.width - indent, list[str]()
        while text and len(wrapped) < lines - 1:
            line = _taken(text, width)
            # Without a space near its end, as in Japanese, a line breaks anywhere.
            space = -1 if line == text else line.rfind(" ", len(line) // 2)
            end = len(line) if space < 0 else space
            wrapped.append(text[:end])
            text = text[end:].lstrip()
        return [" " * indent + line for line in (*wrapped, *([_head(text, width)] if text else []))]

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str | Painted]]) -> list[str]:
        """Lay out a table: numbers to the right, text to the left. If it is too wide, long texts lose their middle.

        Texts must be single lines without control characters.
        """
        cells = [[each if isinstance(each, Painted) else Painted(each, "") for each in row] for row in rows]
        columns = list(zip([Painted(name, "bold") for name in head], *cells, strict=True))
        to_right = [all(_NUMBER.fullmatch(each.text) or each.text in "-–" for each in column[1:]) for column in columns]
        widths = [max(columns_of(each.text) for each in column) for column in columns]
        if self.width is not None:
            most = self.width - _GAP * (len(widths) - 1)
            # First UUIDs, which still differ by their ends; then all texts.
            uuids = [
                n for n, (_, *cells) in enumerate(columns) if cells and all(_UUID.fullmatch(c.text) for c in cells)
            ]
            _narrow(widths, most, uuids, head)
            _narrow(widths, most, [n for n, is_number in enumerate(to_right) if not is_number], head)
        lines: list[str] = []
        for row in zip(*columns, strict=True):
            parts: list[str] = []
            for cell, width, right in zip(row, widths, to_right, strict=True):
                text = fitted(cell.text, width)
                space = " " * (width - columns_of(text))
                painted = self.paint(text, cell.colour)
                parts.append(f"{space}{painted}" if right else f"{painted}{space}")
            lines.append((" " * _GAP).join(parts).rstrip())
        return lines


def _narrow(widths: list[int], most: int, shrinking: Sequence[int], heads: Sequence[str]) -> None:
    """Narrow the widest of these columns until all columns fit, or these can be no narrower."""
    while sum(widths) > most:
        left = [number for number in shrinking if widths[number] > max(_NARROWEST, columns_of(heads[number]))]
        if not left:
            return
        widths[max(left, key=widths.__getitem__)] -= 1


def columns_of(text: str) -> int:
    """Return how many columns of a terminal the text takes; East Asian wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )


def fitted(text: str, width: int) -> str:
    """Return the text, without its middle if it is too wide: names differ at either end."""
    if columns_of(text) <= width:
        return text
    head = _taken(text, width // 2)
    tail = _taken(text[::-1], width - 1 - columns_of(head))[::-1]
    return f"{head}…{tail}"


def _head(text: str, width: int) -> str:
    return text if columns_of(text) <= width else f"{_taken(text, width - 1)}…"


def _taken(text: str, width: int) -> str:
    """Return as much of the beginning of the text as fits."""
    taken = 0
    for number, each in enumerate(text):
        taken += columns_of(each)
        if taken > width:
            return text[:number]
    return text
