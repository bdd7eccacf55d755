"""Declaration of a function's owner and callers, the source for migrations, the doctor and conversions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from salon_jobs.access.roles import identifier

_DEFINITION: Final = re.compile(
    r"LANGUAGE (?P<language>\w+)(?P<options>[^$]*?)\s*AS \$body\$(?P<body>.*)\$body\$", re.DOTALL
)
_SETTING: Final = re.compile(r"\bSET (\w+) = ((?:(?! SET ).)+)")


class Trigger(NamedTuple):
    """A trigger of a table in the function's schema: event, and for which rows or statements."""

    name: str
    event: str
    table: str
    rows: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionAccess:
    """Everything declared for one function: its definition, its owner and who may call it.

    ``arguments`` are only the types. ``definition`` is CREATE OR REPLACE FUNCTION, from LANGUAGE on in the order
    LANGUAGE, options, ``AS $body$``. ``owner`` None is whoever migrates. ``callers`` are roles; PUBLIC never may call
    it.
    """

    schema: str
    name: str
    arguments: str
    definition: str
    callers: tuple[str, ...] = ()
    owner: str | None = None
    triggers: tuple[Trigger, ...] = ()

    @property
    def signature(self) -> str:
        return f"{identifier(self.schema)}.{identifier(self.name)}({self.arguments})"

    @property
    def behaviour(self) -> tuple[str, ...]:
        """How it runs, in words: language, security, volatility and settings."""
        options = " ".join(self._parsed["options"].split())
        return (
            f"LANGUAGE {self._parsed['language']}",
            "SECURITY DEFINER" if "SECURITY DEFINER" in options else "SECURITY INVOKER",
            next((word for word in ("STABLE", "IMMUTABLE") if word in options), "VOLATILE"),
            ", ".join(f"{name}={value.strip()}" for name, value in _SETTING.findall(options)) or "no settings",
        )

    @property
    def body(self) -> str:
        return self._parsed["body"]

    @property
    def _parsed(self) -> re.Match[str]:
        parsed = _DEFINITION.search(self.definition)
        if parsed is None:
            raise ValueError(f"the definition of {self.name} is not in the form that FunctionAccess reads")
        return parsed

    def create(self) -> list[str]:
        """Return the statements that create or replace it and its triggers and set who may call it, as its owner."""
        callers = ", ".join(map(identifier, self.callers))
        return [
            self.definition,
            f"REVOKE ALL ON FUNCTION {self.signature} FROM PUBLIC",
            *([f"GRANT EXECUTE ON FUNCTION {self.signature} TO {callers}"] if callers else []),
            *(
                f"CREATE OR REPLACE TRIGGER {trigger.name} {trigger.event} ON {self._table(trigger)} {trigger.rows} "
                f"EXECUTE FUNCTION {self.signature}"
                for trigger in self.triggers
            ),
        ]

    def drop(self) -> list[str]:
        """Return the statements that drop its triggers and itself if they exist."""
        return [
            *(f"DROP TRIGGER IF EXISTS {trigger.name} ON {self._table(trigger)}" for trigger in self.triggers),
            f"DROP FUNCTION IF EXISTS {self.signature}",
        ]

    def _table(self, trigger: Trigger) -> str:
        return f"{identifier(self.schema)}.{identifier(trigger.table)}"
