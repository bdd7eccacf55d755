"""Transitions between the states of an object, written down as a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

S = TypeVar("S")


def moved(before: S, after: S, table: Mapping[S, Collection[S]]) -> S:
    """Return the state ``after``; assert that the table allows it after ``before``."""
    assert after in table[before], f"{before} does not go on to {after}"  # noqa: S101 - a defect of ours
    return after
