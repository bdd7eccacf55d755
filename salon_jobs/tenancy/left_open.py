"""Ends the contexts that a request leaves open: a generator that nobody ends would hand them to the next request."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from django.core.signals import request_finished, request_started
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from salon_jobs.tenancy.block import Block
from salon_jobs.tenancy.session import discard


class _Around(threading.local):
    """Holds the contexts that were open on this thread when its request began, as a test's own."""

    blocks: frozenset[Block] = frozenset()


_around = _Around()


def watch_requests() -> None:
    """Look at the beginning and the end of each request of this process."""
    request_started.connect(_remember, dispatch_uid="salon_jobs.left_open")
    request_finished.connect(_end_what_is_left, dispatch_uid="salon_jobs.left_open")


def _open_blocks() -> Iterator[tuple[BaseDatabaseWrapper, Block]]:
    for connection in connections.all(initialized_only=True):
        for wrapper in tuple(connection.execute_wrappers):
            if isinstance(wrapper, Block):
                yield connection, wrapper


def _remember(**_: object) -> None:
    _around.blocks = frozenset(block for _, block in _open_blocks())


def _end_what_is_left(**_: object) -> None:
    for connection, block in _open_blocks():
        if block in _around.blocks:
            continue
        block.close()
        discard(connection, f"a context of store {block.store} was left open")
        # One that was closed inside a transaction stays unusable: Django makes another.
        if connections[connection.alias] is connection:
            del connections[connection.alias]
    _around.blocks = frozenset()
