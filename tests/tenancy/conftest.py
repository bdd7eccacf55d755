"""Fixtures for the tests that stores are isolated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from salon_jobs.tenancy import reset_store
from tests.tenancy.probe import pool_alias
from tests.tenancy.session_state import function_and_right, jobs
from tests.tenancy.web import kept, pooled, two, web_role

__all__ = ["function_and_right", "jobs", "kept", "pooled", "two", "web_role"]


@pytest.fixture
def pool(stores: list[UUID], request: pytest.FixtureRequest) -> Iterator[Any]:
    """Provide an alias with a pool of one connection, as the web role or as the role of the alias asked for."""
    with pool_alias(getattr(request, "param", "web"), reset=reset_store) as wrapper:
        yield wrapper
