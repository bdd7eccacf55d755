"""Gives the tests of session scope their pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from salon_jobs.tenancy import reset_store
from tests.tenancy.pooled import pool_of_one


@pytest.fixture(params=["default", "web"], ids=["worker", "web"])
def pool(stores: list[UUID], request: pytest.FixtureRequest) -> Iterator[Any]:
    """Give an alias with a pool of one connection, as the worker role or the web role."""
    yield from pool_of_one(request.param, {"reset": reset_store})


@pytest.fixture
def pool_without_reset(stores: list[UUID]) -> Iterator[Any]:
    """Give one whose returned connections nobody resets."""
    yield from pool_of_one("default", {})
