"""Declares ``SALON_JOBS["LOGGING"]``: what the processes write to standard output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from salon_jobs.sections.reading import log_level, one_of, setting

FORMATS: Final = ("json", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """Level and format of the log. ``--log-level`` and ``--log-format`` of a command override them."""

    level: str = setting("INFO", log_level())
    format: str = setting("json", one_of(*FORMATS))
