"""Interrupts of statements that wait for a lock."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.support import elsewhere, wait_until_waiting


@contextmanager
def interrupted_while_waiting(handler: Callable[..., object]) -> Iterator[None]:
    """Have this thread get a signal, which this function handles, once a connection waits for a lock."""
    former = signal.signal(signal.SIGALRM, handler)

    def interrupt() -> None:
        wait_until_waiting()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    try:
        with ThreadPoolExecutor(1) as pool:
            elsewhere(pool, interrupt)
            yield
    finally:
        signal.signal(signal.SIGALRM, former)
