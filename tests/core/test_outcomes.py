"""What a handler may ask for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from salon_jobs import Retry, Snooze


@pytest.mark.parametrize("wait", [timedelta(0), timedelta(days=36_500)])
def test_snooze_within_a_century(wait: timedelta) -> None:
    assert Snooze(wait).delay == wait


@pytest.mark.parametrize("wait", [timedelta(microseconds=-1), timedelta(days=36_500, seconds=1), timedelta.max, 300])
def test_invalid_snooze_is_refused(wait: Any) -> None:
    for kind in (Snooze, Retry):
        with pytest.raises(ValueError, match=f"{kind.__name__} takes a timedelta from zero to 36,500 days, not {wait}"):
            kind(wait)


def test_retry_reports_what_caused_it() -> None:
    """The error from which it is raised, or the one being handled; without any, or with None, itself."""

    def caught(cause: BaseException | None, *, explicit: bool) -> Retry:
        try:
            try:
                raise KeyError("handled")
            except KeyError:
                if explicit:
                    raise Retry(timedelta(0)) from cause
                raise Retry(timedelta(0))  # noqa: B904
        except Retry as error:
            return error

    cause = OSError("busy")
    assert caught(cause, explicit=True).error is cause
    assert type(caught(None, explicit=False).error) is KeyError
    for alone in (caught(None, explicit=True), Retry(timedelta(minutes=5))):
        assert alone.error is alone
    assert str(Retry(timedelta(minutes=5))) == "to be retried after 0:05:00"
