"""Runs moto with FIFO queues that keep the order of a group for several receivers at once, as those of AWS do.

moto looks at the groups on their way once, when a long poll begins, and at the clock for each message. So two receivers
that wait get messages of one group at once, and a message becomes visible before one that was sent before it.
"""

from __future__ import annotations

import sys
import time
from threading import Lock
from typing import Any, Final

import moto.server
import moto.sqs.models

_sqs: Final[Any] = moto.sqs.models
_receive, _clock = _sqs.SQSBackend.receive_message, _sqs.unix_time_millis
_one_at_a_time: Final = Lock()


def receive_in_order(backend: Any, queue: str, count: int, wait_s: int, *args: Any) -> Any:
    """Receive what is visible at one instant, one receiver after the other, until there is something or time is up."""
    end = time.monotonic() + wait_s
    while not (received := _receive_now(backend, queue, count, *args)) and time.monotonic() < end:
        time.sleep(0.02)
    return received


def _receive_now(backend: Any, queue: str, count: int, *args: Any) -> Any:
    with _one_at_a_time:
        now = _clock()
        _sqs.unix_time_millis = lambda: now
        try:
            return _receive(backend, queue, count, 0, *args)
        finally:
            _sqs.unix_time_millis = _clock


if __name__ == "__main__":
    _sqs.SQSBackend.receive_message = receive_in_order
    moto.server.main(sys.argv[1:])
