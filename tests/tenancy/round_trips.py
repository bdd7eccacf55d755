"""Counts the round trips of a connection, as libpq itself tells them."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper


@contextmanager
def round_trips(connection: BaseDatabaseWrapper) -> Generator[list[int]]:
    """Give a list that holds their number after the block: each ends with the server's ReadyForQuery."""
    connection.ensure_connection()
    raw: Any = connection.connection
    counted: list[int] = []
    with tempfile.NamedTemporaryFile() as trace:
        raw.pgconn.trace(trace.fileno())
        try:
            yield counted
        finally:
            raw.pgconn.untrace()
        counted.append(Path(trace.name).read_text(errors="replace").count("ReadyForQuery"))
