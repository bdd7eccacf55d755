"""What handlers do, and reads of the result as the owner."""

from __future__ import annotations

import time
from uuid import uuid4

from project.salon.models import Customer
from salon_jobs import current_store_id
from tests.support import seen
from tests.waiting import LIMIT_S
from tests.worker.conftest import Busy


def write(name: str = "effect") -> None:
    """Add a row of the current store, as the worker role under row-level security."""
    store_id = current_store_id()
    assert store_id is not None
    Customer.objects.create(id=uuid4(), store_id=store_id, name=name, email="a@example.com")


def written() -> list[str]:
    """Return the names of all rows that are committed, in any store."""
    return [row[0] for row in seen("SELECT name FROM customer ORDER BY name")]


def spin(busy: Busy | None = None, **_: object) -> None:
    """Be busy until interrupted."""
    deadline = time.monotonic() + LIMIT_S
    try:
        if busy is not None:
            busy.set()
        while time.monotonic() < deadline:
            pass
    finally:
        if busy is not None:
            busy.clear()
