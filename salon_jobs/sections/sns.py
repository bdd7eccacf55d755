"""Declares how to reach AWS SNS, and SQS on the way back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SnsSettings:
    """Holds how to reach AWS SNS, and SQS on the way back."""
