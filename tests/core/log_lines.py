"""Our handler of the log as the only one, and what it has written."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Generator
from contextlib import contextmanager

from salon_jobs.process.log_lines import LinesHandler, as_json


class Counted(io.StringIO):
    """Counts the writes."""

    writes = 0

    def write(self, text: str, /) -> int:
        self.writes += 1
        return super().write(text)


@contextmanager
def only_handler() -> Generator[Counted]:
    """Make our handler the only one, as the commands do; pytest's own come with each phase of a test."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    made = Counted()
    root.handlers[:] = [LinesHandler(made, as_json)]
    root.setLevel("INFO")
    try:
        yield made
    finally:
        root.handlers[:] = before
        root.setLevel(level)


def without_time(lines: str) -> list[dict[str, object]]:
    """Read the lines; each has a time."""
    read = [json.loads(line) for line in lines.splitlines()]
    assert all(line.pop("time") for line in read)
    return read
