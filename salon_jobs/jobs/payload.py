"""Converts and validates a task's arguments from its signature, the same way at enqueue and before the run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
import msgspec.inspect

from salon_jobs.core.errors import PayloadInvalid, TaskInvalid

STORE_ARGUMENT = "store_id"
# A NUL, written as JSON: "\u0000" after an even number of backslashes. PostgreSQL's jsonb refuses it and would abort
# the caller's transaction.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


@dataclass(frozen=True, slots=True)
class Arguments:
    """Holds validated arguments in their stored form: the store apart, the rest as JSON text."""

    store_id: UUID | None
    json: str
    plain: Mapping[str, Any]


class PayloadType:
    """Knows the argument types of one task. Raises TaskInvalid when the signature can not be a payload."""

    def __init__(self, task_name: str, function: Callable[..., Any], *, with_store: bool) -> None:
        self.task_name = task_name
        self.signature = inspect.signature(function)
        hints = _type_hints(task_name, function)
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for parameter in self.signature.parameters.values():
            _check_parameter(task_name, parameter, hints)
            annotation = _aware(hints[parameter.name])
            if parameter.default is inspect.Parameter.empty:
                fields.append((parameter.name, annotation))
            else:
                fields.append((parameter.name, annotation, _default(parameter.default)))
        self._check_store(hints, with_store=with_store)
        self.with_store = with_store
        try:
            self._struct = msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=True)
            self._decoder = msgspec.json.Decoder(self._struct)
            foreign = _foreign_types(msgspec.inspect.type_info(self._struct))
        except TypeError as error:
            raise TaskInvalid(f"task {task_name!r}: an argument's type can not be a payload: {error}") from error
        if foreign:
            raise TaskInvalid(
                f"task {task_name!r}: an argument's type can not be a payload: {', '.join(sorted(foreign))}; "
                "pass what finds it again, such as its id"
            )

    def _check_store(self, hints: Mapping[str, Any], *, with_store: bool) -> None:
        has_store = STORE_ARGUMENT in self.signature.parameters
        if with_store and not has_store:
            raise TaskInvalid(f"store task {self.task_name!r} needs the parameter store_id: UUID")
        if with_store and hints[STORE_ARGUMENT] is not UUID:
            raise TaskInvalid(f"store task {self.task_name!r}: store_id must be annotated as UUID")
        if has_store and not with_store:
            raise TaskInvalid(f"task {self.task_name!r} takes store_id; declare it with store_task")

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the arguments."""
        return frozenset(self.signature.parameters)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Bind a call to the signature and validate it. Raises PayloadInvalid with path and expected type."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise PayloadInvalid(f"task {self.task_name!r}: {error}") from error
        bound.apply_defaults()
        return self.validate(bound.arguments)

    def validate(self, arguments: Mapping[str, Any]) -> Arguments:
        """Validate arguments given by name. Raises PayloadInvalid with path and expected type."""
        try:
            utc = {name: value.astimezone(UTC) if _is_aware(value) else value for name, value in arguments.items()}
            encoded = msgspec.json.encode(utc)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise PayloadInvalid(f"task {self.task_name!r}: an argument can not be written as JSON: {error}") from error
        if _NUL.search(encoded):
            raise PayloadInvalid(f"task {self.task_name!r}: an argument holds a NUL character, which jsonb refuses")
        values = self._decode(encoded)
        plain: dict[str, Any] = msgspec.json.decode(encoded)
        store_id: UUID | None = None
        if self.with_store:
            store_id = values[STORE_ARGUMENT]
            del plain[STORE_ARGUMENT]
        return Arguments(store_id, msgspec.json.encode(plain).decode(), plain)

    def decode(self, payload: str, store_id: UUID | None) -> dict[str, Any]:
        """Convert a stored payload to the handler's arguments. Raises PayloadInvalid when it no longer fits."""
        if not self.with_store:
            return self._decode(payload.encode())
        if store_id is None:
            raise PayloadInvalid(f"task {self.task_name!r}: the job has no store_id")
        try:
            plain = msgspec.json.decode(payload.encode())
        except msgspec.MsgspecError as error:
            raise PayloadInvalid(f"task {self.task_name!r}: {error}") from error
        if not isinstance(plain, dict):
            raise PayloadInvalid(f"task {self.task_name!r}: the payload is not an object")
        return self._decode(msgspec.json.encode({**plain, STORE_ARGUMENT: store_id}))

    def _decode(self, encoded: bytes) -> dict[str, Any]:
        try:
            struct = self._decoder.decode(encoded)
        except msgspec.MsgspecError as error:
            raise PayloadInvalid(f"task {self.task_name!r}: {error}") from error
        return {name: getattr(struct, name) for name in self._struct.__struct_fields__}


def _type_hints(task_name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TaskInvalid(
            f"task {task_name!r}: {error}; argument types are needed at run time, import them outside TYPE_CHECKING"
        ) from error
    except (AttributeError, TypeError, SyntaxError) as error:
        raise TaskInvalid(f"task {task_name!r}: an annotation can not be understood: {error}") from error


def _foreign_types(root: msgspec.inspect.Type) -> set[str]:
    """Return the names of types in an annotation that JSON can not hold: models, files, classes of one's own."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(node) not in seen:
            seen.add(id(node))
            if isinstance(node, msgspec.inspect.CustomType):
                found.add(node.cls.__name__)
            waiting.extend(getattr(node, name) for name in node.__struct_fields__)
    return found


def _check_parameter(task_name: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> None:
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise TaskInvalid(f"task {task_name!r}: parameter {parameter.name!r} must be an ordinary named one")
    if parameter.name not in hints:
        raise TaskInvalid(f"task {task_name!r}: parameter {parameter.name!r} needs a type annotation")


def _default(value: Any) -> Any:
    # A mutable default is copied for each payload.
    return msgspec.field(default_factory=value.copy) if type(value) in (list, dict, set) and value else value


def _is_aware(value: object) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _aware(annotation: Any) -> Any:
    """Demand a time zone of every datetime in an annotation: an instant without one names no moment."""
    if annotation is datetime:
        return Annotated[datetime, msgspec.Meta(tz=True)]
    origin: Any = get_origin(annotation)
    arguments = get_args(annotation)
    if origin in (Union, UnionType):
        return Union[tuple(_aware(argument) for argument in arguments)]  # noqa: UP007 - built at run time
    if origin in (list, set, frozenset, tuple, dict):
        generic: Any = origin
        return generic[tuple(_aware(argument) for argument in arguments)]
    return annotation
