"""Type of the stores' keys, and of each ``store_id``: that of the primary key of ``STORE_MODEL``."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache
from string import ascii_lowercase, digits
from typing import Any, Final
from uuid import UUID

from django.apps import apps
from django.core.signals import setting_changed
from django.db import models

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import StoreId

# Without commas, quotes, backslashes and spaces: keys are joined by commas and become literals.
_TEXT: Final = re.compile(r"[\w.~@:+-]{1,100}")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True)
class StoreKey:
    """One type of key: Python's, PostgreSQL's, and its name in messages.

    ``none`` stands for no store where an index compares it like any other value; no store has it. ``pattern`` is the
    regular expression, in PostgreSQL's syntax, of a key's text as the server writes it.
    """

    type: type[StoreId]
    sql: str
    none: StoreId
    pattern: str
    description: str
    longest: int

    @property
    def none_sql(self) -> str:
        """``none`` as a literal of SQL."""
        return f"'{self.none}'::{self.sql}"

    def somewhere(self) -> StoreId:
        """Return a key at a random place in the order of stores, for any number of stores."""
        if self.type is UUID:
            return UUID(int=random.getrandbits(128))
        # Numbers are given in turn, so that low ones are the most likely.
        return int(2 ** random.uniform(0, 32)) if self.type is int else random.choice(ascii_lowercase + digits)  # noqa: S311 - no secret

    def parse(self, value: object) -> StoreId:
        """Return a store's key, given as such or as text. Raises ValueError with the expected form."""
        if self.type is UUID:
            if isinstance(value, UUID):
                return value
            try:
                return UUID(str(value))
            except ValueError:
                pass
        elif self.type is str:
            if isinstance(value, str) and _TEXT.fullmatch(value):
                return value
        else:
            number = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
            if isinstance(number, int) and not isinstance(number, bool) and 0 < number < 2**63:
                return number
        raise ValueError(f"must be {self.description}")


_UUID: Final = StoreKey(UUID, "uuid", UUID(int=0), "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "a UUID", 36)
_INTEGER: Final = StoreKey(int, "bigint", 0, "^[1-9][0-9]{0,18}$", "a whole number from 1", 19)
_CHARACTERS: Final = "1 to 100 letters, digits and characters of . _ ~ @ : + -"
_STRING: Final = StoreKey(str, "text", "", "^[^[:space:],]{1,100}$", _CHARACTERS, 100)


def store_model() -> type[models.Model] | None:
    """Return STORE_MODEL's class, None without one. Raises LookupError if it does not exist."""
    return None if conf.store_model is None else apps.get_model(conf.store_model)


@cache
def store_key() -> StoreKey:
    """Return the type of the stores' keys, once Django has loaded the apps; UUID without STORE_MODEL.

    Also for a model that does not exist or has a key of another type; a check reports both.
    """
    try:
        model = store_model()
    except LookupError:
        model = None
    return key_of(model and model._meta.pk) or _UUID


def key_of(field: Any) -> StoreKey | None:
    """Return the type of a model's field, or of the field its foreign key refers to; None if no store can have it."""
    while field is not None and field.is_relation:
        field = field.target_field
    if isinstance(field, models.UUIDField):
        return _UUID
    if isinstance(field, models.IntegerField):
        return _INTEGER
    return _STRING if isinstance(field, (models.CharField, models.TextField)) else None


def _forget(*, setting: str, **_: object) -> None:
    if setting in ("SALON_JOBS", "INSTALLED_APPS"):
        store_key.cache_clear()


setting_changed.connect(_forget)
