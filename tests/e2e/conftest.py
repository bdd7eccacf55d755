"""Starts, with the first test that runs workers, what takes thirty seconds."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.e2e.stubborn import StubbornEnd, stubborn_end


@pytest.fixture(scope="session")
def stubborn(
    migrated: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[StubbornEnd, threading.Thread]]:
    """Tell a worker with default settings to stop while its job feels no interrupt; other tests go on meanwhile."""
    with stubborn_end(tmp_path_factory.mktemp("stubborn")) as end:
        yield end
