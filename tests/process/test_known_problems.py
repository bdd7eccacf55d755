"""The problems in a process's readiness: their age, and what it says if it does not know them."""

from __future__ import annotations

import logging

import pytest

from salon_jobs.process.known_problems import KnownProblems
from tests.support import event_fields


class Verdict:
    """Verdict that takes some time to read, by its own clock, and counts how often it was read."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.takes_s = 0.0
        self.read_count = 0
        self.error: Exception | None = None
        self.known = KnownProblems(self._read, clock=lambda: self.now_s)

    def _read(self) -> list[str]:
        self.read_count += 1
        self.now_s += self.takes_s
        if self.error is not None:
            raise self.error
        return [f"problem {self.read_count}"]


def test_age_of_problems_is_told() -> None:
    """It counts from when their queries began; they are read again after half a minute at the earliest."""
    verdict = Verdict()
    assert verdict.known.facts() == {"problems_unknown": "not read yet"}
    verdict.takes_s = 4
    verdict.known.renew()
    assert verdict.known.facts() == {"problems": ["problem 1"], "judged_s_ago": 4.0}
    verdict.now_s += 25
    verdict.known.renew()
    assert verdict.known.facts() == {"problems": ["problem 1"], "judged_s_ago": 29.0}
    verdict.now_s += 1
    verdict.known.renew()
    assert verdict.known.facts() == {"problems": ["problem 2"], "judged_s_ago": 4.0}


def test_old_problems_are_unknown() -> None:
    """After a minute and a half nobody takes them for those of now, whatever keeps the next verdict away."""
    verdict = Verdict()
    verdict.known.renew()
    verdict.now_s += 90
    assert verdict.known.facts() == {"problems": ["problem 1"], "judged_s_ago": 90.0}
    verdict.now_s += 1
    assert verdict.known.facts() == {"problems_unknown": "last read 91 s ago"}
    verdict.known.renew()
    assert verdict.known.facts() == {"problems": ["problem 2"], "judged_s_ago": 0.0}


def test_text_of_error_is_only_in_log(caplog: pytest.LogCaptureFixture) -> None:
    """Once for each kind of error, with its traceback."""
    verdict = Verdict()
    verdict.error = OSError('connection to "db.internal" as "boss" failed')
    for _ in range(2):
        verdict.known.renew()
        assert verdict.known.facts() == {"problems_unknown": "OSError", "judged_s_ago": 0.0}
        verdict.now_s += 30
    assert event_fields(caplog, "problems_unknown") == [{}]
    [record] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert record.exc_info is not None
    assert record.exc_info[1] is verdict.error
    verdict.error = None
    verdict.known.renew()
    assert verdict.known.facts()["problems"] == ["problem 3"]
    verdict.now_s += 30
    verdict.error = OSError("again")
    verdict.known.renew()
    assert len(event_fields(caplog, "problems_unknown")) == 2
