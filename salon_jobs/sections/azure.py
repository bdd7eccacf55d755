"""Declares how to reach Azure Queue Storage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSettings:
    """Holds how to reach Azure Queue Storage."""
