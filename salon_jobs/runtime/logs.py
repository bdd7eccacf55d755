"""Sends the log of a process to standard output, as JSON lines or text."""

from __future__ import annotations

import logging
import sys

from salon_jobs.core.log_events import JsonLinesHandler


def configure_logging(*, as_json: bool, level: str) -> None:
    """Replace the root handlers by one on standard output. ``level`` is a name such as INFO."""
    handler: logging.Handler
    if as_json:
        handler = JsonLinesHandler(sys.stdout)
    else:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
