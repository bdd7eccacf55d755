"""Shows the lines of the log: one by one and many at once they look alike."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from salon_jobs.core import events
from salon_jobs.core.events import JsonLinesHandler, log_batch, log_event

FIELDS: list[dict[str, Any]] = [{"task_name": "caf\udce9", "job_id": number, "store_id": None} for number in range(3)]


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
    root.handlers[:] = [JsonLinesHandler(made)]
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


def test_many_events_are_written_at_once_and_look_as_if_they_were_not() -> None:
    with only_handler() as stream:
        log_batch(logging.INFO, events.JOB_SUCCEEDED, FIELDS, fields=dict)
        assert stream.writes == 1
        together = without_time(stream.getvalue())
    with only_handler() as stream:
        for fields in FIELDS:
            log_event(logging.INFO, events.JOB_SUCCEEDED, **fields)
        assert together == without_time(stream.getvalue())
    assert len(together) == 3


def test_levels_and_other_handlers_are_respected() -> None:
    other = Counted()
    handler = logging.StreamHandler(other)
    with only_handler() as stream:
        log_batch(logging.DEBUG, events.JOB_SUCCEEDED, FIELDS, fields=dict)
        log_batch(logging.INFO, events.JOB_SUCCEEDED, [], fields=dict)
        assert stream.getvalue() == ""
        logging.getLogger("salon_jobs").addHandler(handler)
        try:
            log_batch(logging.INFO, events.JOB_SUCCEEDED, FIELDS, fields=dict)
        finally:
            logging.getLogger("salon_jobs").removeHandler(handler)
        assert len(stream.getvalue().splitlines()) == 3
    assert other.getvalue().count("job_succeeded") == 3


def test_a_batch_that_can_not_be_written_is_told_and_raises_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    class Full(io.StringIO):
        def write(self, _: str, /) -> int:
            raise OSError("no space left")

    JsonLinesHandler(Full()).write_batch(logging.INFO, "job_succeeded", [{"job_id": 1}], fields=dict)
    assert "no space left" in capsys.readouterr().err
