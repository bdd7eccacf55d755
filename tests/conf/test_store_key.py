"""The type of the stores' keys follows the store model, and what is not a key is refused."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from django.db import models

from salon_jobs.conf.store_key import StoreKey, key_of, store_key

UUID_KEY = key_of(models.UUIDField())
NUMBER = key_of(models.BigAutoField(primary_key=True))
TEXT = key_of(models.SlugField())
ONE = UUID("6f5b4f0c-9d47-4f2f-8f5a-7c119a4d2c0e")


@pytest.mark.parametrize(
    ("field", "sql"),
    [
        (models.UUIDField(), "uuid"),
        (models.AutoField(primary_key=True), "bigint"),
        (models.SmallAutoField(primary_key=True), "bigint"),
        (models.PositiveIntegerField(), "bigint"),
        (models.CharField(max_length=20), "text"),
        (models.TextField(), "text"),
    ],
)
def test_type_of_key(field: models.Field[Any, Any], sql: str) -> None:
    key = key_of(field)
    assert key is not None
    assert key.sql == sql


def test_other_fields_are_no_keys() -> None:
    for field in (models.DateField(), models.BinaryField(), models.DecimalField(), None):
        assert key_of(field) is None


def test_without_a_store_model_keys_are_uuids(settings: Any) -> None:
    settings.SALON_JOBS = {}
    assert store_key() is UUID_KEY


@pytest.mark.parametrize(
    ("key", "given", "parsed"),
    [
        (UUID_KEY, ONE, ONE),
        (UUID_KEY, str(ONE), ONE),
        (NUMBER, 42, 42),
        (NUMBER, "42", 42),
        (NUMBER, 2**63 - 1, 2**63 - 1),
        (TEXT, "north-1", "north-1"),
        (TEXT, "München.example:80", "München.example:80"),
    ],
)
def test_parse_key(key: StoreKey, given: object, parsed: object) -> None:
    assert key.parse(given) == parsed
    assert type(key.parse(given)) is key.type


@pytest.mark.parametrize(
    ("key", "given"),
    [
        *((UUID_KEY, value) for value in (42, "north-1", "", None, b"")),
        *((NUMBER, value) for value in (0, -1, 2**63, True, 1.0, "01", "1 ", "٣", "", None, ONE, "9" * 5000)),
        *((TEXT, value) for value in ("", "a b", "a,b", "it's", 'a"b', "a\\b", "a\n", "\x00", "x" * 101, 42, None)),
    ],
)
def test_wrong_key_is_refused(key: StoreKey, given: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        key.parse(given)


@pytest.mark.parametrize("key", [NUMBER, TEXT], ids=["number", "text"])
def test_no_store_has_key_of_none(key: StoreKey) -> None:
    with pytest.raises(ValueError, match="must be"):
        key.parse(key.none)


@pytest.mark.parametrize("key", [UUID_KEY, NUMBER, TEXT], ids=["uuid", "number", "text"])
def test_random_key_is_valid(key: StoreKey) -> None:
    assert all(key.parse(key.somewhere()) for _ in range(100))
