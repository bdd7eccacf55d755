"""Declares a column type that Django lacks."""

from __future__ import annotations

import json
from typing import Any

from django.db import models


class JSONTextField(models.JSONField):
    """Holds JSON as the text that was written, in a column of type ``json``.

    jsonb sorts keys and puts blanks between them: what a broker gets would be longer than what was checked.
    """

    def db_type(self, connection: Any) -> str:
        """Return the column's type."""
        return "json"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return Python values; psycopg converts ``json`` by itself, unless its loader was replaced."""
        return json.loads(value) if isinstance(value, str) else value
