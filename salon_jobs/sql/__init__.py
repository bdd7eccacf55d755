"""Loads the hot statements: one file each, its purpose, locks and role in its header."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def load(name: str) -> str:
    """Return the statement in ``<name>.sql`` without its header comment, cached for the process."""
    text = resources.files("salon_jobs.sql").joinpath(f"{name}.sql").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()
