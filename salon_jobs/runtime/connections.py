"""Cleans this thread's Django connections between two pieces of work, as a request would."""

from __future__ import annotations

from django.db import connections


def tidy_connections() -> None:
    """Close this thread's connections that broke, were left in a transaction, or outlived CONN_MAX_AGE.

    Not for use inside ``transaction.atomic()``: whatever block is open here was left open by somebody else.

    CONN_MAX_AGE 0 means "one request" to a web server; a worker's thread keeps such a connection between jobs.
    """
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            # Django keeps such a connection unusable until the block ends, which it never will: forget it.
            connection.close()
            del connections[connection.alias]
            continue
        if connection.settings_dict["CONN_MAX_AGE"] == 0:
            connection.close_at = None
        connection.queries_log.clear()
        connection.close_if_unusable_or_obsolete()
