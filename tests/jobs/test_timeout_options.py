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
        ({"wait_overtime": MINUTE}, "wait_overtime adds to a wait_timeout"),
        ({"waiting_shortens_timeout": True}, "waiting_shortens_timeout shortens a timeout"),
        ({"timeout": MINUTE, "waiting_shortens_timeout": 1}, "must be True or False"),
    ],
)
def test_what_can_not_work_is_refused_with_its_name(options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionInvalid, match=why):
        Timeouts(**options)


def test_unset_means_off() -> None:
    off = Timeouts()
    assert not off.any
    assert off.run_s(1e9) is None
    assert off.expiry(1e9) is None


@pytest.mark.parametrize(("waited_s", "left_s"), [(0, 60), (20, 40), (59, 1), (59.9, 1), (600, 1)])
def test_waiting_shortens_to_a_second_at_least(waited_s: float, left_s: float) -> None:
    assert Timeouts(timeout=MINUTE).run_s(waited_s) == 60
    assert Timeouts(timeout=MINUTE, waiting_shortens_timeout=True).run_s(waited_s) == left_s


def test_a_timeout_below_a_second_is_not_lengthened() -> None:
    short = timedelta(seconds=0.5)
    assert Timeouts(timeout=short, waiting_shortens_timeout=True).run_s(10) == 0.5


def test_the_wait_ends_after_its_limit_and_overtime() -> None:
    timeouts = Timeouts(wait_timeout=MINUTE, wait_overtime=timedelta(seconds=30))
    assert timeouts.expiry(90) is None
    assert timeouts.expiry(91) == "waited 91 s, longer than 90 s"
    assert Timeouts(wait_timeout=MINUTE).expiry(61) == "waited 61 s, longer than 60 s"
