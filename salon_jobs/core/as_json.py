"""JSON of a project's values: a subclass is written as its base, and lazy text as its current value.

Arguments, results, steps and messages are all written here.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any, Final, cast

import msgspec

# A NUL written as JSON: "\u0000" after an even number of backslashes. PostgreSQL's jsonb refuses it, and would abort
# the caller's transaction.
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# The deepest nesting that can be written: msgspec stops at Python's own bound.
_DEEPEST: Final = 1000


# While a test freezes the time, freezegun replaces this class by its own in every module.
DATETIME: Final[type[datetime]] = next(each for each in datetime.__mro__ if each.__module__ == "datetime")


def _time_of(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in ("hour", "minute", "second", "microsecond", "tzinfo", "fold")}


# How an instance of a subclass becomes one of the base, without calling methods of the subclass. The base is taken from
# its class, and never by its name in a module: a test may have replaced that, as freezegun does.
_BASES: Final[dict[tuple[str, str], Callable[[Any, Any], Any]]] = {
    ("django.utils.functional", "Promise"): lambda _, value: str(value),  # in the current language
    ("django.utils.functional", "LazyObject"): lambda _, value: value.__reduce__()[1][0],
    ("builtins", "str"): lambda base, value: base.__str__(value),
    ("builtins", "int"): lambda base, value: base.__int__(value),
    ("builtins", "float"): lambda base, value: base.__float__(value),
    ("builtins", "bytes"): lambda base, value: base.join(b"", [value]),
    ("builtins", "bytearray"): lambda base, value: base(value),
    ("decimal", "Decimal"): lambda base, value: base(value),
    ("datetime", "datetime"): lambda base, value: base(value.year, value.month, value.day, **_time_of(value)),
    ("datetime", "date"): lambda base, value: base(value.year, value.month, value.day),
    ("datetime", "time"): lambda base, value: base(**_time_of(value)),
    ("datetime", "timedelta"): lambda base, value: base(value.days, value.seconds, value.microseconds),
}


def as_base(value: Any) -> Any:
    """Return a value that msgspec cannot write as one that it can. Raises TypeError, with the value to pass instead."""
    for base in type(value).__mro__:
        if (write := _BASES.get((base.__module__, base.__qualname__))) is not None:
            return write(base, value)
    raise TypeError(f"{_named(value)} is no value of JSON: {_instead_of(value)}")


def as_member(kind: type[Any], value: Any) -> Any:
    """Return the member of an enumeration that msgspec does not know, such as one of Django's choices."""
    if not issubclass(kind, Enum):
        raise NotImplementedError(kind)
    try:
        return kind(value)
    except ValueError:
        raise ValueError("Invalid enum value") from None  # without the value: logs must not contain payloads


def to_plain(value: Any, *, keep: Iterable[type[Any]] = (), str_keys: bool = False) -> Any:
    """Return a value composed of JSON's types and of the types in ``keep``. Raises any error of its own classes."""
    write = partial(msgspec.to_builtins, enc_hook=as_base, builtin_types=keep, order="deterministic")
    try:
        return write(value, str_keys=str_keys)
    except TypeError:
        if not str_keys:
            raise
        # msgspec calls str() of a key, which must not return a subclass: safe text returns itself.
        return write(_with_base_keys(write(value)), str_keys=True)


def _with_base_keys(value: Any) -> Any:
    if type(value) in (dict,):  # keeps type checkers from narrowing it to a dict of unknowns
        return {as_base(key) if isinstance(key, str) else key: _with_base_keys(each) for key, each in value.items()}
    return [_with_base_keys(each) for each in value] if type(value) in (list, tuple) else value


_write = msgspec.json.Encoder(enc_hook=as_base).encode


def encode(value: Any, *, plain: bool = False, in_utc: bool = True) -> bytes:
    """Return JSON that jsonb accepts, with every aware instant ``in_utc``; ``plain`` values are written as they are.

    Raises ValueError with the path of the part that cannot be written, its type, and the value to pass instead.
    """
    try:
        encoded = _write(value if plain or not in_utc else _canonical(to_plain(value, keep=(DATETIME,)), "$"))
        if not (plain or in_utc) and b"null" in encoded:  # as msgspec writes NaN too
            _canonical(to_plain(value), "$")
        if b"\\u0000" in encoded and _NUL.search(encoded):
            raise ValueError("it contains a NUL character, which PostgreSQL cannot keep; remove it")
    except Exception as error:  # the caller's own class may raise anything
        raise ValueError(why_not(value, error)) from error
    return encoded


def why_not(value: Any, error: Exception) -> str:
    """Return why a value cannot be written as JSON, with the path of the part that cannot; ``error`` is the failure."""
    try:
        found = next(_faults(value, "$", 0), None)
    except Exception:  # of the value's own classes: the first error is reported
        found = None
    return found or str(error) or type(error).__name__


def _faults(value: Any, path: str, depth: int) -> Iterator[str]:
    """Yield the faults of each part of a value, with their paths."""
    if depth > _DEEPEST:
        yield f"it is nested too deeply, or contains itself - at `{path}`"
        return
    if isinstance(value, str) and not isinstance(value, Enum):
        if "\0" in value:
            yield f"it contains a NUL character, which PostgreSQL cannot keep; remove it - at `{path}`"
        elif _SURROGATE.search(value):
            yield f"it contains a lone surrogate, which is no character of UTF-8; remove it - at `{path}`"
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{value} is not a number in JSON - at `{path}`"
    elif isinstance(value, Mapping):
        for key, each in cast("Any", value).items():
            yield from _faults(key, f"{path}, a key", depth + 1)
            yield from _faults(each, f"{path}.{key}", depth + 1)
    elif isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray | range):
        for number, each in enumerate(cast("Any", value)):
            yield from _faults(each, f"{path}[{number}]", depth + 1)
    elif (names := _fields_of(value)) is not None:
        for name in names:
            yield from _faults(getattr(value, name), f"{path}.{name}", depth + 1)
    else:
        try:
            to_plain(value)
        except Exception as error:  # it is reported as a fault
            yield f"{error} - at `{path}`"


def _fields_of(value: Any) -> Sequence[str] | None:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return None


def _named(value: Any) -> str:
    kind = cast("type[Any]", value.__class__)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# What to pass instead of an instance of a class, by its module and name.
_INSTEAD: Final = {
    ("django.db.models.base", "Model"): "pass its key, .pk",
    ("django.db.models.query", "QuerySet"): "pass a list of keys, list(….values_list('pk', flat=True))",
    ("django.db.models.manager", "BaseManager"): "pass a list of keys, list(….values_list('pk', flat=True))",
    ("django.core.files.base", "File"): "store the file, and pass its name",
    ("django.http.request", "HttpRequest"): "pass what the task needs of the request",
    ("builtins", "BaseException"): "pass its text, str(…)",
    ("builtins", "type"): "pass its name",
}


def _instead_of(value: Any) -> str:
    found = filter(None, (_INSTEAD.get((each.__module__, each.__qualname__)) for each in value.__class__.__mro__))
    if (known := next(found, None)) is not None:
        return known
    if callable(value):
        return "pass its name"
    return "pass list(…)" if isinstance(value, Iterable) else "pass what identifies it, or a dict of what is needed"


def _canonical(value: Any, path: str) -> Any:
    """Return a JSON value with every datetime in UTC. Raises ValueError for a number that JSON cannot represent."""
    if type(value) in (dict,):  # keeps type checkers from narrowing it to a dict of unknowns
        return {_canonical(key, path): _canonical(each, f"{path}.{key}") for key, each in value.items()}
    if type(value) in (list, tuple):
        return [_canonical(each, f"{path}[{number}]") for number, each in enumerate(value)]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a number in JSON - at `{path}`")
    return value
