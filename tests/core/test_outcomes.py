"""What a handler may ask for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from salon_jobs import Snooze


@pytest.mark.parametrize("wait", [timedelta(0), timedelta(days=36_500)])
def test_snooze_within_a_century(wait: timedelta) -> None:
    assert Snooze(wait).delay == wait


@pytest.mark.parametrize("wait", [timedelta(microseconds=-1), timedelta(days=36_500, seconds=1), timedelta.max, 300])
def test_invalid_snooze_is_refused(wait: Any) -> None:
    with pytest.raises(ValueError, match=f"a timedelta from zero to 36,500 days, not {wait}"):
        Snooze(wait)
