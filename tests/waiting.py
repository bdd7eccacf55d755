"""How tests wait: for a condition, with one generous limit, never for a length of time."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
# Many times what anything takes on two cores at a load of 20. Nothing waits longer than its condition needs.
LIMIT_S: Final = 60.0
_ANYTHING_TRUE: Final = object()


def eventually(
    read: Callable[[], T],
    equals: object = _ANYTHING_TRUE,
    *,
    limit_s: float = LIMIT_S,
    what: Callable[[], str] | None = None,
) -> T:
    """Call ``read`` until it returns what is expected, by default anything true; return that.

    Fails the test with what was read last, and with the text of ``what``. A larger ``limit_s`` is for what builds
    images or promotes servers.
    """
    deadline = time.monotonic() + limit_s
    pause_s = 0.002
    while True:
        value = read()
        if value if equals is _ANYTHING_TRUE else value == equals:
            return value
        if time.monotonic() > deadline:
            wanted = "anything true" if equals is _ANYTHING_TRUE else repr(equals)
            told = f"\n{what()}" if what is not None else ""
            raise AssertionError(f"read {value!r} after {limit_s:.0f} s instead of {wanted}, by {_source(read)}{told}")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)


def _source(read: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(read).split())
    except (OSError, TypeError):
        return repr(read)
