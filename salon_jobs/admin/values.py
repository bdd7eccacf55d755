"""Writes the values of a row as its page shows them."""

from __future__ import annotations

import json
from datetime import datetime

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from salon_jobs.conf import settings as conf
from salon_jobs.core.error_report import storable
from salon_jobs.core.redaction import redacted


def instant(at: datetime) -> str:
    """Write an instant in the time zone of the page, as the admin's own columns are."""
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S %Z}"


def text(value: str) -> SafeString:
    """Write a text of several lines."""
    return format_html('<pre class="salon-jobs-text">{}</pre>', value)


def as_json(value: object) -> SafeString:
    """Write indented JSON, with what ``REDACT`` names hidden."""
    return text(storable(json.dumps(redacted(value, conf.redact), indent=2, ensure_ascii=False)))
