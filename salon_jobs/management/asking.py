"""Asks before something is done that can not be undone."""

from __future__ import annotations

import sys

from django.core.management.base import CommandError, OutputWrapper


def ask(question: str, err: OutputWrapper, *, otherwise: str, remedy: str) -> None:
    """Go on after a yes. Raises CommandError with ``otherwise`` after anything else; with ``remedy`` off a terminal."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Nobody can be asked here: {remedy}")
    err.write(f"{question} [y/N] ", ending="")
    err.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError(otherwise)
