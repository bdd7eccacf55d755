"""Declares who owns and calls a function; migrations, the doctor and conversions derive from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from salon_jobs.access.roles import identifier

_HEAD: Final = re.compile(r"LANGUAGE (?P<language>\w+)(?P<options>[^$]*?)\s*AS \$body\$(?P<body>.*)\$body\$", re.DOTALL)
_SETTING: Final = re.compile(r"\bSET (\w+) = ((?:(?! SET ).)+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """Is how a function runs, as ``pg_proc`` says it."""

    language: str
    is_definer: bool
    volatility: str
    settings: tuple[str, ...]
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionAccess:
    """Is all that is declared of one function: its definition, its owner and who may call it.

    ``arguments`` are the types alone. ``definition`` is CREATE OR REPLACE FUNCTION, from LANGUAGE on in the order
    LANGUAGE, options, ``AS $body$``. ``owner`` None: whoever migrates. ``callers`` are roles; PUBLIC never calls it.
    """

    schema: str
    name: str
    arguments: str
    definition: str
    callers: tuple[str, ...] = ()
    owner: str | None = None

    @property
    def signature(self) -> str:
        """Return schema, name and the types of its arguments."""
        return f"{identifier(self.schema)}.{identifier(self.name)}({self.arguments})"

    @property
    def behaviour(self) -> Behaviour:
        """Return how it runs, read from its definition."""
        head = _HEAD.search(self.definition)
        if head is None:
            raise ValueError(f"the definition of {self.name} is not in the form that FunctionAccess reads")
        options = " ".join(head["options"].split())
        volatility = "s" if "STABLE" in options else "i" if "IMMUTABLE" in options else "v"
        return Behaviour(
            language=head["language"],
            is_definer="SECURITY DEFINER" in options,
            volatility=volatility,
            settings=tuple(f"{name}={value.strip()}" for name, value in _SETTING.findall(options)),
            body=head["body"],
        )

    def create(self) -> list[str]:
        """Return what makes it anew and sets who may call it, to be run as its owner."""
        return [self.definition, f"REVOKE ALL ON FUNCTION {self.signature} FROM PUBLIC", *self.give()]

    def give(self) -> list[str]:
        """Return what lets its callers call it, to be run as its owner."""
        callers = ", ".join(map(identifier, self.callers))
        return [f"GRANT EXECUTE ON FUNCTION {self.signature} TO {callers}"] if callers else []

    def drop(self) -> str:
        """Return what drops it if it is there."""
        return f"DROP FUNCTION IF EXISTS {self.signature}"
