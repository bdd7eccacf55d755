"""Declares what a difference between the declaration and the live catalogue is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Is one difference: what and where, what is declared and what is there, and the statements that mend it.

    ``mend`` runs as a superuser, in order. ``is_decision``: only a person can say whether ``mend`` is right or the
    declaration is wrong, so that nothing runs it by itself; ``hint`` says what else to do.
    """

    kind: str
    where: str
    expected: str
    seen: str
    mend: tuple[str, ...]
    is_decision: bool = False
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: expected {self.expected}, found {self.seen}"
