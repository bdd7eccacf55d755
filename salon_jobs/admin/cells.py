"""Cells of the admin's lists and row pages: times, states and JSON, as HTML."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from operator import attrgetter
from typing import Any

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.error_report import storable
from salon_jobs.core.redaction import redacted
from salon_jobs.core.text import SHOWN_AT_FIRST, beginning
from salon_jobs.dashboard.processes import LATE_TICK
from salon_jobs.db import clock
from salon_jobs.jobs import registry
from salon_jobs.models import Limit
from salon_jobs.tenancy.names import store_name
from salon_jobs.words import ago, duration, exact, scope_words

# A display function of a list or page: called by Django with the admin and the row.
Display = Callable[[Any, Any], SafeString | str]


def _display_of(name: str, description: Any, show: Callable[[Any], SafeString | str]) -> Display:
    read = attrgetter(name)  # ``known.progress`` is a field of the row's read model

    @admin.display(description=description)
    def shown(_: Any, row: Any) -> SafeString | str:
        return show(read(row))

    return shown


def _instant_of(name: str, description: Any, show: Callable[[datetime, datetime], SafeString]) -> Display:
    read = attrgetter(name)

    @admin.display(description=description)
    def shown(_: Any, row: Any) -> SafeString | str:
        at = read(row)
        return "-" if at is None else show(at, now_of(row))

    return shown


def now_of(row: Any) -> datetime:
    """Return the time of the database from which a row was read."""
    return clock.now(row._state.db)


# With this in its address, a row's page shows large values whole.
SHOW, ALL = "show", "all"


def is_whole(row: Any) -> bool:
    """Return whether the page of a row shows large values whole."""
    return getattr(row, "shows_all", False)


def time_of(name: str, description: Any) -> Display:
    """Return the display function of a row's time, with its zone (in any format of the project) and relative to now."""
    return _instant_of(name, description, exact)


def age_of(name: str, description: Any) -> Display:
    """Return the display function of a row's time relative to now, with the time as a tooltip."""
    return _instant_of(name, description, ago)


def text_of(name: str, description: Any) -> Display:
    """Return the display function of a row's text."""
    return _display_of(name, description, str)


def duration_of(name: str, description: Any) -> Display:
    """Return the display function of a row's duration in seconds."""
    return _display_of(name, description, lambda seconds: "-" if seconds is None else duration(seconds))


def json_of(name: str, description: Any, *, hides_empty: bool = False) -> Display:
    """Return the display function of a row's JSON, perhaps with a dash for an empty value."""

    @admin.display(description=description)
    def shown(_: Any, row: Any) -> SafeString | str:
        value = getattr(row, name)
        return "-" if hides_empty and not value else as_json(value, whole=is_whole(row))

    return shown


def payload_of(description: Any) -> Display:
    """Return the display function of the arguments of a row's task."""

    @admin.display(description=description)
    def shown(_: Any, row: Any) -> SafeString | str:
        return as_json(registry.visible(row.task, row.payload), whole=is_whole(row))

    return shown


def count_of(name: str, description: Any) -> Display:
    """Return the display function of a row's count, with a dash for zero, which its page leaves out."""
    return _display_of(name, description, lambda count: f"{count:,}" if count else "-")


def scope_name(kind: str, name: str) -> str:
    """Format what a limit or a pause applies to; a store by its name."""
    return scope_words(kind, store_name(store_key().parse(name)) if kind == Limit.Kind.STORE.value else name)


def below(shown: object, *parts: object) -> SafeString:
    """Format a cell of a list: the value, and below it the parts that are not empty."""
    return format_html("{}<small>{}</small>", shown, format_html_join(" · ", "{}", ((part,) for part in parts if part)))


def cell_with_lines(shown: object, *lines: str) -> SafeString:
    """Format a cell of a list: the value, and below it each line that is not empty."""
    return format_html("{}{}", shown, format_html_join("", "<small>{}</small>", ((line,) for line in lines if line)))


def lines_of(lines: Iterable[object]) -> SafeString:
    """Format lines, one below the other."""
    return format_html("<div>{}</div>", format_html_join("", "<div>{}</div>", ((line,) for line in lines)))


def badge(shown: str, kind: str) -> SafeString:
    """Format a state, translated, as a badge: ``kind`` (good, busy, waiting, bad or quiet) chooses its colour."""
    return format_html('<span class="salon-jobs-badge {}">{}</span>', kind, gettext(shown))


def next_tick(at: datetime, now: datetime) -> SafeString:
    """Format the oldest tick that has not fired, marked if it is late."""
    return format_html("{} {}", ago(at, now), badge("late", "bad")) if now - at > LATE_TICK else ago(at, now)


# Longer values are folded: a payload of megabytes makes a page of hundreds of screens.
_LINES, _CHARACTERS = 40, 4000


def large(value: str, *, whole: bool) -> SafeString:
    """Format a text of any size: for a large one the beginning and a link to all of it, or the ``whole``."""
    first, size = ("", 0) if whole else beginning(value)
    if not size:
        return text(value)
    said = gettext("The first %(shown)s of %(size)s bytes.") % {"shown": f"{SHOWN_AT_FIRST:,}", "size": f"{size:,}"}
    link = format_html('<p>{} <a href="?{}={}">{}</a></p>', said, SHOW, ALL, gettext("Show all"))
    return format_html("<div>{}{}</div>", link, text(first))


def text(value: str) -> SafeString:
    """Format a text of several lines, folded if it is long."""
    shown = format_html('<pre class="salon-jobs-text">{}</pre>', value)
    lines = value.count("\n") + 1
    if lines <= _LINES and len(value) <= _CHARACTERS:
        return shown
    said = ngettext("%(lines)s line, %(characters)s characters", "%(lines)s lines, %(characters)s characters", lines)
    size = said % {"lines": f"{lines:,}", "characters": f"{len(value):,}"}
    return format_html("<details><summary>{}</summary>{}</details>", size, shown)


def as_json(value: object, *, whole: bool = False) -> SafeString:
    """Format a value as JSON with foldable objects and lists, without the values of keys that ``REDACT`` names.

    Parts of a long value are folded at first, as is a value with many parts. A large value is text, as from ``large``.
    """
    shown: Any = redacted(value, conf.redact)
    written = storable(json.dumps(shown, indent=2, ensure_ascii=False))
    if beginning(written)[1] or not isinstance(shown, dict | list) or not shown:
        return large(written, whole=whole)
    is_short = written.count("\n") < _LINES and len(written) <= _CHARACTERS
    return format_html('<div class="salon-jobs-text salon-jobs-json-tree">{}</div>', _tree(shown, "", "", is_short, 0))


def _tree(value: Any, key: str, comma: str, is_short: bool, depth: int) -> SafeString:
    if not isinstance(value, dict | list) or not value:
        return format_html("<div>{}{}{}</div>", key, _written(value), comma)
    begin, end = "{}" if isinstance(value, dict) else "[]"
    values: list[Any] = [*value.values()] if isinstance(value, dict) else [*value]
    keys: list[Any] = [*value] if begin == "{" else []
    names = [f"{_written(each)}: " for each in keys] or [""] * len(values)
    commas = [","] * (len(values) - 1) + [""]
    inner = format_html_join(
        "", "{}", ((_tree(*each, is_short, depth + 1),) for each in zip(values, names, commas, strict=True))
    )
    return format_html(
        '<details{}><summary data-size=" … {} {}">{}{}</summary><div>{}</div>{}{}</details>',
        SafeString(" open" if is_short or (not depth and len(values) <= _LINES) else ""),
        f"{len(values):,}",
        end,
        key,
        begin,
        inner,
        end,
        comma,
    )


def _written(value: Any) -> str:
    return storable(json.dumps(value, ensure_ascii=False))
