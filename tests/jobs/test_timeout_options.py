"""Shows what a task's timeouts refuse and how they are counted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from salon_jobs.core.errors import OptionInvalid
from salon_jobs.jobs.options import Timeouts

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"timeout": timedelta(0)}, "timeout must be a timedelta above zero"),
        ({"timeout": 60}, "timeout must be a timedelta above zero, not 60"),
        ({"wait_timeout": -MINUTE}, "wait_timeout must be"),
        ({"wait_timeout": MINUTE, "wait_overtime": "x"}, "wait_overtime must be"),
        ({"wait_overtime": MINUTE}, "wait_overtime is grace before a wait_timeout counts"),
        ({"timeout": MINUTE, "waiting_shortens_timeout": True}, "left of the wait_timeout: pass both"),
        ({"wait_timeout": MINUTE, "waiting_shortens_timeout": True}, "left of the wait_timeout: pass both"),
        ({"timeout": MINUTE, "waiting_shortens_timeout": 1}, "must be True or False"),
    ],
)
def test_impossible_timeouts_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionInvalid, match=why):
        Timeouts(**options)


def test_unset_means_off() -> None:
    off = Timeouts()
    assert not off.any
    assert off.run_s(1e9) is None
    assert off.expiry(1e9) is None


@pytest.mark.parametrize("timeout_s", [10, 15, 3600])
def test_waiting_shortens_timeout(timeout_s: float) -> None:
    timeout, half = timedelta(seconds=timeout_s), timedelta(seconds=30)
    assert Timeouts(timeout=timeout, wait_timeout=half).run_s(20) == timeout_s
    assert Timeouts(timeout=timeout, wait_timeout=half, waiting_shortens_timeout=True).run_s(20) == 10


@pytest.mark.parametrize(("waited_s", "left_s"), [(0, 15), (15, 15), (16, 14), (29, 1), (29.9, 1)])
def test_timeout_is_shortened_to_a_second_at_least(waited_s: float, left_s: float) -> None:
    options = {"timeout": timedelta(seconds=15), "wait_timeout": timedelta(seconds=30)}
    assert Timeouts(**options, waiting_shortens_timeout=True).run_s(waited_s) == left_s


def test_timeout_below_a_second_stays() -> None:
    short = timedelta(seconds=0.5)
    assert Timeouts(timeout=short, wait_timeout=MINUTE, waiting_shortens_timeout=True).run_s(59.9) == 0.5


def test_job_expires_after_wait_timeout() -> None:
    timeouts = Timeouts(wait_timeout=MINUTE)
    assert timeouts.expiry(60) is None
    assert timeouts.expiry(61) == "waited 61 s, longer than 60 s"


def test_wait_timeout_counts_after_overtime() -> None:
    timeouts = Timeouts(
        timeout=timedelta(hours=1),
        wait_timeout=MINUTE,
        wait_overtime=timedelta(seconds=30),
        waiting_shortens_timeout=True,
    )
    assert timeouts.expiry(90) is None
    assert timeouts.expiry(91) == "waited 91 s, 61 s of it after the overtime, longer than 60 s"
    assert [timeouts.run_s(waited_s) for waited_s in (0, 30, 50)] == [60, 60, 40]
