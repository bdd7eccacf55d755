"""The lines of the log: one by one and many at once they look alike."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from salon_jobs.core import events
from salon_jobs.core.events import log_event
from salon_jobs.core.run_log import LONGEST_RECORD, JobLog
from salon_jobs.process.log_lines import LinesHandler, as_json, log_batch
from salon_jobs.process.logs import JobContext
from tests.core.log_lines import Counted, only_handler, without_time

FIELDS: list[dict[str, Any]] = [{"task_name": "caf\udce9", "job_id": number, "store_id": None} for number in range(3)]


@contextmanager
def seen_by(handler: logging.StreamHandler[Any]) -> Generator[Counted]:
    """Add a handler to our logger."""
    written = Counted()
    handler.setStream(written)
    logging.getLogger("salon_jobs").addHandler(handler)
    try:
        yield written
    finally:
        logging.getLogger("salon_jobs").removeHandler(handler)


def test_batch_looks_like_single_events() -> None:
    with only_handler() as stream:
        log_batch(logging.INFO, events.JOB_SUCCEEDED, FIELDS, fields=dict)
        assert stream.writes == 1
        together = without_time(stream.getvalue())
    with only_handler() as stream:
        for fields in FIELDS:
            log_event(logging.INFO, events.JOB_SUCCEEDED, **fields)
        assert together == without_time(stream.getvalue())
    assert len(together) == 3


def test_line_without_store_names_none() -> None:
    """Neither as JSON, one by one or many at once, nor as the text that a host's own formatter writes."""
    fields: list[dict[str, Any]] = [{"job_id": 1, "store_id": None}, {"job_id": 2, "store_id": "x"}]
    with only_handler() as stream, seen_by(logging.StreamHandler()) as other:
        log_batch(logging.INFO, events.JOB_SUCCEEDED, fields, fields=dict)  # one by one: there are two handlers
        lines = without_time(stream.getvalue())
    with only_handler() as stream:
        log_batch(logging.INFO, events.JOB_SUCCEEDED, fields, fields=dict)
        assert without_time(stream.getvalue()) == lines
    assert ["store_id" in line for line in lines] == [False, True]
    assert other.getvalue().splitlines() == ["job_succeeded job_id=1", "job_succeeded job_id=2 store_id=x"]


def test_kept_log_leaves_the_last_resort(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the host's root has no handler, Python writes warnings to standard error, and goes on doing so."""
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root.manager, "loggerDict", {})
    JobLog().listen()
    logging.root.warning("the printer is off")
    logging.root.info("nothing new")
    assert capsys.readouterr().err == "the printer is off\n"


def test_levels_and_other_handlers() -> None:
    with only_handler() as stream:
        log_batch(logging.DEBUG, events.JOB_SUCCEEDED, FIELDS, fields=dict)
        log_batch(logging.INFO, events.JOB_SUCCEEDED, [], fields=dict)
        assert stream.getvalue() == ""
        with seen_by(logging.StreamHandler()) as other:
            log_batch(logging.INFO, events.JOB_SUCCEEDED, FIELDS, fields=dict)
        assert len(stream.getvalue().splitlines()) == 3
    assert other.getvalue().count("job_succeeded") == 3


@pytest.mark.parametrize("of", ["handler", "logger"])
def test_filter_sees_each_record_of_batch(of: str) -> None:
    """One may drop it or add to it, as for single events; our own filter, which all processes have, costs no write."""

    def only_odd(record: logging.LogRecord) -> bool:
        fields: dict[str, Any] = vars(record)["event_fields"]
        fields["shop"] = "x"
        return bool(fields["job_id"] % 2)

    with only_handler() as stream:
        [handler] = logging.getLogger().handlers
        handler.addFilter(JobContext())
        log_batch(logging.INFO, events.JOB_SUCCEEDED, FIELDS, fields=dict)
        assert stream.writes == 1
        stream.truncate(0)
        stream.seek(0)
        filtered = handler if of == "handler" else logging.getLogger("salon_jobs")
        filtered.addFilter(only_odd)
        try:
            log_batch(logging.INFO, events.JOB_SUCCEEDED, FIELDS, fields=dict)
        finally:
            filtered.removeFilter(only_odd)
        [line] = without_time(stream.getvalue())
    assert (line["job_id"], line["shop"]) == (1, "x")


@pytest.mark.parametrize("text", ["x" * 500_000, "カ" * 30_000, "\x9b" * 20_000])
def test_batch_bounds_each_line(text: str) -> None:
    """As for single events, a long one loses the middles of its texts; the others stay as they are."""
    fields: list[dict[str, Any]] = [{"job_id": 0}, {"job_id": 1, text: text, "more": [text]}, {"job_id": 2}]
    with only_handler() as stream:
        log_batch(logging.INFO, events.JOB_SUCCEEDED, fields, fields=dict)
        assert stream.writes == 1
        lines = stream.getvalue().splitlines()
    assert max(len(line.encode()) for line in lines) <= LONGEST_RECORD
    assert [json.loads(line)["job_id"] for line in lines] == [0, 1, 2]


def test_unwritable_batch_raises_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    class Full(io.StringIO):
        def write(self, _: str, /) -> int:
            raise OSError("no space left")

    LinesHandler(Full(), as_json).write_batch(logging.INFO, "job_succeeded", [{"job_id": 1}])
    assert "no space left" in capsys.readouterr().err


UNSEEN = "\x7f\x9b\x85\u2028\u2029\u202e\u2066\u2069\x1b"


def test_unseen_characters_are_escaped() -> None:
    fields: list[dict[str, Any]] = [{"task_name": f"a{UNSEEN}b", "job_id": number} for number in range(2)]
    with only_handler() as stream:
        log_batch(logging.INFO, events.JOB_SUCCEEDED, fields, fields=dict)
        log_event(logging.INFO, events.JOB_SUCCEEDED, **fields[0])
        logging.getLogger("host").info("said %s", UNSEEN)
        written = stream.getvalue()
    assert not any(each in written for each in UNSEEN)
    assert [json.loads(line).get("task_name") for line in written.split("\n")[:3]] == [f"a{UNSEEN}b"] * 3
    assert json.loads(written.split("\n")[3])["message"] == f"said {UNSEEN}"


def test_plain_formatter_shows_one_line(caplog: pytest.LogCaptureFixture) -> None:
    log_event(logging.WARNING, events.JOB_RETRIED, error=f"a{UNSEEN}\nb")
    [record] = caplog.records
    assert not any(each in record.getMessage() for each in (*UNSEEN, "\n"))


@pytest.mark.parametrize("text", ["x" * 500_000, "\0" * 100_000, "カ" * 100_000, "\x9b" * 50_000])
def test_record_of_any_size(text: str) -> None:
    def fail() -> BaseException:
        try:
            raise ValueError(text) from KeyError(text)
        except ValueError as error:
            return error

    with only_handler() as stream:
        fields: dict[str, Any] = {
            "task_name": "t",
            "job_id": 7,
            "code": "JOB.X",
            "error": text,
            "more": [text],
            text: 1,
        }
        log_event(logging.ERROR, events.JOB_FAILED, exc_info=fail(), **fields)
        logging.getLogger("host").error("%s", text, exc_info=fail())
        lines = stream.getvalue().splitlines()
    assert max(len(line.encode()) for line in lines) <= LONGEST_RECORD
    ours, theirs = map(json.loads, lines)
    assert (ours["event"], ours["task_name"], ours["job_id"], ours["code"]) == (events.JOB_FAILED, "t", 7, "JOB.X")
    assert ours["error"]
    assert theirs["message"]
    assert ours["traceback"]
    assert theirs["traceback"]


def test_traceback_of_other_handler() -> None:
    other = Counted()
    handler = logging.StreamHandler(other)
    events.logger.logger.addHandler(handler)
    try:
        log_event(logging.ERROR, events.JOB_FAILED, exc_info=ValueError("password=hunter2" + "x" * 500_000))
    finally:
        events.logger.logger.removeHandler(handler)
    assert "ValueError: password=***" in other.getvalue()
    assert len(other.getvalue()) < 10_000
