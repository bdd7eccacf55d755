"""Work on threads that begin at once, each with a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tests.support import elsewhere
from tests.waiting import LIMIT_S


def together(*works: Callable[[], Any]) -> list[Any]:
    """Run them, and return what they return."""
    ready = threading.Barrier(len(works))

    def run(work: Callable[[], Any]) -> Any:
        ready.wait(LIMIT_S)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [each.result(LIMIT_S) for each in [elsewhere(pool, partial(run, work)) for work in works]]
