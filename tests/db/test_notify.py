"""Which commits are announced by a wake-up of their own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salon_jobs.db import notify
from salon_jobs.db.notify import MORE, SECOND_POLL, WakeUps


def announced(gaps_ms: list[float], *, together: bool = False) -> list[tuple[float, str | None]]:
    """Return the instant, in milliseconds, and the wake-up of commits with these gaps."""
    clock = SimpleNamespace(now=1000.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notify, "time", SimpleNamespace(monotonic=lambda: clock.now))
        channel = WakeUps("any", together=together)
        news: list[tuple[float, str | None]] = []
        for gap_ms in gaps_ms:
            clock.now += gap_ms / 1000
            news.append((clock.now * 1000, channel.record_commit()))
    return news


@pytest.mark.parametrize("gap_ms", [3, 5, 50, 5000])
def test_few_commits_are_announced_each(gap_ms: float) -> None:
    assert [news for _, news in announced([gap_ms] * 100)] == [""] * 100


def test_many_commits_announce_more() -> None:
    news = [news for _, news in announced([0.5] * 400)]
    assert news[:4] == [""] * 4, "a few at once are few"
    assert 8 <= news.count(MORE) <= 11
    assert set(news[20:]) == {MORE, None}
    assert [news for _, news in announced([0.5] * 400 + [10] * 40)][-20:] == [""] * 20


def test_commits_announced_together() -> None:
    assert [news for _, news in announced([30, 1, 18, 2, 30], together=True)] == ["", None, None, "", ""]


@given(st.lists(st.floats(0, 40), max_size=200), st.booleans())
def test_silent_commit_follows_announcement_of_more(gaps_ms: list[float], together: bool) -> None:
    more_at = float("-inf")
    for at, news in announced(gaps_ms, together=together):
        if news == MORE or (together and news == ""):
            more_at = at
        if news is None:
            assert at - more_at < SECOND_POLL.total_seconds() * 1000 - 5, "its listener still looks then"
