"""What is kept of an error: everything that helps, nothing secret, and never much."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salon_jobs.conf import settings as conf
from salon_jobs.core.error_report import message_of, report, traceback_of


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


class Huge(Exception):
    """Has a text of half a megabyte."""

    def __str__(self) -> str:
        return "x" * 500_000


class Broken(Exception):
    """Has a text that ends the process, and no notes."""

    def __str__(self) -> str:
        raise SystemExit(1)


def chained() -> BaseException:
    """Return an error with notes, a cause and a context, all with the same secret."""
    try:
        try:
            raise KeyError("token=hunter2")
        except KeyError as error:
            raise ValueError({"password": "hunter2"}) from error
    except ValueError as caught:
        caught.add_note("pwd=hunter2")
        group = ExceptionGroup("logging in with password 'hunter2'", [caught, OSError("jwt: hunter2")])
        return raised(group)


def test_report_shows_no_secret() -> None:
    described = report(chained())
    for text in (described.message, described.traceback, described.alike, traceback_of(chained())):
        assert "hunter2" not in text
    for kept in ("ExceptionGroup", "ValueError", "KeyError", "OSError", "direct cause", "chained", "pwd=***"):
        assert kept in described.traceback


def test_setting_decides_what_is_secret(settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "REDACT": ["phone"]}
    assert message_of(ValueError("phone=1 token=2")) == "phone=*** token=2"
    settings.SALON_JOBS = {**settings.SALON_JOBS, "REDACT": []}
    assert message_of(ValueError("phone=1 token=2 Bearer abcdef")) == "phone=1 token=2 Bearer abcdef"
    settings.SALON_JOBS = {**settings.SALON_JOBS, "REDACT": 5}
    with pytest.raises(Exception, match="REDACT"):
        _ = conf.redact
    assert message_of(ValueError("phone=1 token=2")) == "phone=1 token=***"


def test_traceback_reads_like_that_of_python() -> None:
    text = traceback_of(raised(ValueError("no such salon")))
    assert text.startswith("Traceback (most recent call last):\n  File ")
    assert "raise error" in text
    assert text.endswith("\nValueError: no such salon")
    assert traceback_of(KeyboardInterrupt()) == "KeyboardInterrupt"


@pytest.mark.parametrize(
    "error",
    [
        Huge(),
        Broken(),
        ValueError("\0" * 500_000),
        ValueError(*["x" * 1000] * 1000),
        ExceptionGroup("many", [ValueError("x" * 1000)] * 1000),
    ],
    ids=["huge", "broken", "nul", "arguments", "group"],
)
def test_report_is_bounded(error: BaseException) -> None:
    for _ in range(1000):
        error.add_note("x" * 10_000)
    try:
        raise RuntimeError("x" * 500_000) from error
    except RuntimeError as caught:
        described = report(caught)
    assert len(described.message) <= 4000
    assert len(described.traceback) <= 20_000
    assert len(report(error).traceback) <= 20_000


def test_endless_chain_is_cut() -> None:
    error: BaseException = ValueError("0")
    for number in range(5000):
        following = ValueError(str(number))
        following.__context__, error = error, following
    assert len(traceback_of(error)) <= 20_000
    assert traceback_of(error).endswith("ValueError: 4999")
    error.__cause__ = error
    assert traceback_of(error) == "ValueError: 4999"


def test_deep_recursion_keeps_the_end() -> None:
    def deeper(depth: int) -> None:
        if depth:
            return deeper(depth - 1)
        raise ValueError("at the bottom")

    with pytest.raises(ValueError, match="bottom") as caught:
        deeper(500)
    assert len(traceback_of(caught.value)) <= 20_000
    assert traceback_of(caught.value).endswith("at the bottom")


@given(st.text())
def test_any_text_can_be_stored_and_shown(text: str) -> None:
    for shown in (report(raised(ValueError(text))).message, traceback_of(ValueError(text))):
        shown.encode()
        assert not any(each in shown for each in "\0\x1b\x7f\x9b\u2028\u202e\r")
