"""Ends what a request leaves on its connections: open contexts, and whatever it has set on their sessions."""

from __future__ import annotations

from contextvars import ContextVar

from django.core.signals import request_finished, request_started
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from salon_jobs.tenancy.block import Block, surrounding
from salon_jobs.tenancy.session_reset import discard, reset_after_request, watch_sessions

# Those around the request, as a test's own, in which it calls its client.
_around: ContextVar[tuple[Block, ...]] = ContextVar("salon_jobs_around_request", default=())


def watch_requests() -> None:
    """Look at the beginning and the end of each request of this process."""
    watch_sessions()
    request_started.connect(_watch_from_now_on, dispatch_uid="salon_jobs.session_reset")
    request_started.connect(_remember, dispatch_uid="salon_jobs.left_open")
    request_finished.connect(_end_what_is_left, dispatch_uid="salon_jobs.left_open")


def _watch_from_now_on(**_: object) -> None:
    """Come after the receivers that other apps connected when they were ready."""
    request_started.disconnect(dispatch_uid="salon_jobs.session_reset")
    watch_sessions()


def _remember(**_: object) -> None:
    _around.set(surrounding())


def _end_what_is_left(**_: object) -> None:
    left = [block for block in surrounding() if block not in _around.get() and _is_ours(block.connection)]
    for block in left:
        block.close()
    for connection in {block.connection for block in left}:
        discard(connection, "a request left a tenant context open")
        # One that was closed inside a transaction stays unusable: Django makes another.
        del connections[connection.alias]
    for connection in connections.all(initialized_only=True):
        reset_after_request(connection)


def _is_ours(connection: BaseDatabaseWrapper) -> bool:
    return connections[connection.alias] is connection
