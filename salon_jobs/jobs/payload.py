"""Argument conversion and validation from a task's signature, identical at enqueue and before the run."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
import msgspec.inspect
import msgspec.structs

from salon_jobs.conf import settings as conf
from salon_jobs.conf import store_arguments, uses_time_zones
from salon_jobs.conf.schema import LEAST_BOUND
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.as_json import DATETIME, as_member, encode, to_plain, why_not
from salon_jobs.core.errors import PayloadInvalid, PayloadUnknown, TaskInvalid, suggest
from salon_jobs.core.records import StoreId
from salon_jobs.jobs.options import OTHER_WORDS, EnqueueOptions

STORE_ARGUMENT = "store_id"
# The value or struct tag that msgspec's errors quote from a payload, and the path after it.
_UNQUOTED = r"\1\2"
_QUOTED = re.compile(r"^(Invalid (?:enum )?value) .*?((?: - at `[^`]*`(?: in `[^`]*`)?)?)$", re.DOTALL)
# msgspec's words for a member that neither the signature nor a Struct in it has.
_UNKNOWN_FIELD = "Object contains unknown field"
# Types (not their subclasses) that are the same in JSON.
_BUILTIN: frozenset[type] = frozenset({str, int, bool, NoneType})
# Types that msgspec writes in only one way, so they need no canonical form.
_PLAIN: frozenset[type] = frozenset({str, int, bool, NoneType, UUID, date, Decimal})


class Arguments(msgspec.Struct, frozen=True, gc=False):
    """Validated arguments as stored: the store, and the rest as JSON text without line breaks."""

    store_id: StoreId | None
    json: str

    @property
    def plain(self) -> dict[str, Any]:
        """The arguments as JSON represents them, without the store."""
        values: dict[str, Any] = msgspec.json.decode(self.json)
        return values


class PayloadType:
    """Argument types of one task. Raises TaskInvalid if the signature cannot be a payload."""

    def __init__(self, task_name: str, function: Callable[..., Any], *, with_store: bool) -> None:
        self._compile(task_name, inspect.signature(function), _type_hints(task_name, function), with_store=with_store)

    def _compile(
        self, task_name: str, signature: inspect.Signature, hints: Mapping[str, Any], *, with_store: bool
    ) -> None:
        self.task_name, self.signature = task_name, signature
        # The handler's name for its store; None for a system task.
        self.store_name = _store_name(task_name, signature, hints, with_store=with_store)
        self.store_type = hints[self.store_name] if self.store_name is not None else None
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for parameter in self.signature.parameters.values():
            name, default = parameter.name, parameter.default
            if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
                raise TaskInvalid(f"task {task_name!r}: parameter {name!r} must be an ordinary named parameter")
            if name not in hints:
                raise TaskInvalid(f"task {task_name!r}: parameter {name!r} needs a type annotation")
            if name == self.store_name:
                continue
            if default is inspect.Parameter.empty:
                fields.append((name, _aware(hints[name])))
            else:
                if type(default) in (list, dict, set) and default:  # each payload gets a copy
                    default = msgspec.field(default_factory=default.copy)
                fields.append((name, _aware(hints[name]), default))
        self.names = frozenset(self.signature.parameters)
        self._defaults = {
            parameter.name: parameter.default
            for parameter in self.signature.parameters.values()
            if parameter.default is not inspect.Parameter.empty
        }
        self._types = {field[0]: field[1] for field in fields}
        try:
            self._struct = msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=True)
            self._decoder = msgspec.json.Decoder(self._struct, dec_hook=as_member)
            custom = _custom_types(msgspec.inspect.type_info(self._struct))
        except TypeError as error:
            raise TaskInvalid(f"task {task_name!r}: an argument's type cannot be a payload: {error}") from error
        foreign = {kind.__name__ for kind in custom if not issubclass(kind, Enum)}
        # Django's enumerations, which msgspec does not treat as such.
        self._has_choices = len(custom) > len(foreign)
        if foreign:
            raise TaskInvalid(
                f"task {task_name!r}: an argument's type cannot be a payload: {', '.join(sorted(foreign))}; "
                "pass what identifies it, such as its ID"
            )

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Bind a call to the signature and validate it. Raises PayloadInvalid with path and expected type."""
        if STORE_ARGUMENT in kwargs and STORE_ARGUMENT not in self.names and self.store_name is not None:
            kwargs = {self.store_name if name == STORE_ARGUMENT else name: value for name, value in kwargs.items()}
        if not args:
            named = {**self._defaults, **kwargs}
            if named.keys() == self.names:
                return self.validate(named)
        # Positional arguments, or a mistake: many times slower than the path above.
        for name in kwargs:
            if name not in self.names:
                raise self._unknown(name, self.names - kwargs.keys())
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise PayloadInvalid(f"task {self.task_name!r}: {error}") from error
        bound.apply_defaults()
        return self.validate(bound.arguments)

    def bind_json(self, members: Mapping[str, msgspec.Raw], store_id: object = None) -> Arguments:
        """Bind the members of a JSON object and the store to the signature: numbers keep all of their digits.

        Raises PayloadInvalid with path and expected type.
        """
        for name in members:
            if name not in self._types:
                raise self._unknown(name, self._types.keys() - members.keys())
        try:
            struct = self._decoder.decode(msgspec.json.encode(members))
        except Exception as error:  # a type's own constructor may raise anything
            raise self._misfit(error) from None
        store = {} if self.store_name is None else {self.store_name: store_id}
        return self.validate({name: getattr(struct, name) for name in self._types} | store)

    def validate(self, arguments: Mapping[str, Any]) -> Arguments:
        """Validate named arguments. Raises PayloadInvalid with path and expected type.

        The payload and the keys are made from the converted values, so that it is the same job however the caller
        writes an instant or a uuid.
        """
        values = dict(arguments)
        store_id = None if self.store_name is None else self._store(values.pop(self.store_name, None))
        struct = self._convert(values, self._struct)
        if _PLAIN.issuperset(map(type, msgspec.structs.astuple(struct))):
            encoded = self._encode(struct, plain=True)
        else:
            encoded = self._encode({name: getattr(struct, name) for name in self._types})
        return Arguments(store_id, encoded.decode())

    def decode(self, payload: str, store_id: StoreId | None) -> dict[str, Any]:
        """Convert a stored payload to the handler's arguments. Raises PayloadInvalid if it no longer fits.

        Raises PayloadUnknown if it has an argument that is not in the signature, perhaps from another release.
        """
        if self.store_name is not None and store_id is None:
            raise PayloadInvalid(f"task {self.task_name!r}: the job has no store_id")
        try:
            struct = self._decoder.decode(payload)
        except Exception as error:
            raise self._unknown_in(payload, error) or self._misfit(error) from None
        values = {name: getattr(struct, name) for name in self._types}
        return values if self.store_name is None else {**values, self.store_name: store_id}

    def stored(self, name: str, value: object) -> object:
        """Return one argument in its stored form, for comparison. Raises PayloadInvalid."""
        if name not in self._types:
            raise self._unknown(name, self._types)
        struct = self._convert({name: value}, msgspec.defstruct("Argument", [(name, self._types[name])]))
        return msgspec.json.decode(self._encode({name: getattr(struct, name)}))[name]

    def named(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Return the named arguments of a payload, which are all of its arguments."""
        return payload

    def positional(self, payload: dict[str, Any]) -> Sequence[str]:
        """Return no names: a payload has no positional arguments."""
        return ()

    def _unknown(self, name: str, free: Collection[str]) -> PayloadInvalid:
        """Return the error for an argument that the task does not have; ``free`` are the names it may be meant for."""
        if name in EnqueueOptions.__annotations__:
            hint = f"it is an option: using({name}=…).enqueue(…)"
        elif name in OTHER_WORDS:
            hint = f"use {OTHER_WORDS[name]}"
        elif len(free) == 1:
            hint = f"did you mean {next(iter(free))!r}?"
        else:
            hint = suggest(name, sorted(free or self.names))
        return PayloadInvalid(f"task {self.task_name!r}: no argument {name!r}; {hint}")

    def _store(self, value: object) -> StoreId:
        try:
            return store_key().parse(value)
        except ValueError as error:
            found = value if type(value) is int is store_key().type else type(value).__name__
            text = f"task {self.task_name!r}: the store {error}, not {found} - at `$.{self.store_name}`"
            raise PayloadInvalid(text) from None

    def _convert(self, values: dict[str, Any], kind: Any) -> Any:
        """Convert values, or their spelling in JSON, to the argument types. Raises PayloadInvalid."""
        given = values
        try:
            plain = _BUILTIN.issuperset(map(type, values.values()))
            if not plain:
                values = to_plain(values, str_keys=True)
        except Exception as error:  # the caller's own class may raise anything
            raise self._unwritable(why_not(given, error)) from error
        try:
            # Without keyword arguments, msgspec takes a third of the time.
            if plain and not self._has_choices:
                return msgspec.convert(values, kind)
            return msgspec.convert(values, kind, str_keys=True, dec_hook=as_member)
        except Exception as error:  # a type's own constructor may raise anything
            raise self._misfit(error) from None

    def _misfit(self, error: Exception) -> PayloadInvalid:
        """Return the error for values that do not fit. It does not quote them, since logs must not contain payloads."""
        text = unquoted(error)
        remedy = "; make it aware: timezone.make_aware(…)" if "timezone component" in text else ""
        return PayloadInvalid(f"task {self.task_name!r}: {text}{remedy}")

    def _unknown_in(self, payload: str, error: Exception) -> PayloadUnknown | None:
        """Return the error for a payload with a member that the types here do not have; None if it has none.

        The first error may concern another member: from a release with another signature, other arguments differ as
        well.
        """
        try:
            members: dict[str, msgspec.Raw] = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
        except Exception:  # it is not an object, as the first error says
            return None
        names, what = sorted(members.keys() - self._types.keys()), str(error)
        if names:
            what = f"no argument {', '.join(map(repr, names))}"
        elif not what.startswith(_UNKNOWN_FIELD):
            return None
        return PayloadUnknown(f"task {self.task_name!r}: {what} in this release")

    def _unwritable(self, why: str) -> PayloadInvalid:
        return PayloadInvalid(f"task {self.task_name!r}: an argument cannot be written as JSON: {why}")

    def _encode(self, values: Any, *, plain: bool = False) -> bytes:
        try:
            encoded = encode(values, plain=plain)
        except ValueError as error:
            raise self._unwritable(str(error)) from error
        # Most payloads are smaller than any bound, and those of cron entries are bound at import: without the settings,
        # since a check reports mistakes in them later.
        if len(encoded) > LEAST_BOUND and len(encoded) > conf.max_payload:
            raise PayloadInvalid(
                f"task {self.task_name!r}: the arguments are {len(encoded):,} bytes of JSON; at most "
                f"{conf.max_payload:,} are allowed (SALON_JOBS['MAX_PAYLOAD']): store the content and pass what "
                "identifies it"
            )
        return encoded


class ChunkPayload(PayloadType):
    """Argument types of one task with chunks: the fields of the class in its handler's list.

    A job is stored like any other, with the fields as its arguments. Raises TaskInvalid unless the signature is
    ``(store_id: UUID, jobs: list[Class])``, with any second name and a dataclass or msgspec.Struct as the class.
    """

    def __init__(self, task_name: str, function: Callable[..., Any]) -> None:
        signature, hints = inspect.signature(function), _type_hints(task_name, function)
        store_name = _store_name(task_name, signature, hints, with_store=True) or STORE_ARGUMENT
        others = [name for name in signature.parameters if name != store_name]
        annotation = hints.get(others[0]) if len(others) == 1 else None
        item = get_args(annotation)[0] if get_origin(annotation) is list else None
        fields = None if item is None else _fields(item)
        if item is None or fields is None:
            raise TaskInvalid(
                f"task {task_name!r} has chunk: its handler takes the store and a list of payloads, annotated "
                "with a dataclass or a msgspec.Struct of the arguments of one job, such as jobs: list[Sale]"
            )
        if store_name in fields:
            raise TaskInvalid(
                f"task {task_name!r}: {item.__name__} needs no {store_name}; the handler gets it separately"
            )
        self.item, self._list_name = item, others[0]
        # As in the class itself, each job gets its own value.
        self._factories: dict[str, Callable[[], Any]] = {
            name: default.default_factory for name, default in fields.items() if isinstance(default, _Field)
        }
        parameter = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
        types = {**_type_hints(task_name, item), store_name: hints[store_name]}
        parameters = [parameter(name, default=default, annotation=types[name]) for name, default in fields.items()]
        signature = inspect.Signature([parameter(store_name, annotation=types[store_name]), *parameters])
        self._compile(task_name, signature, types, with_store=True)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Bind ``(store_id, item)``, or the item's fields by name. Raises PayloadInvalid."""
        if not args:
            made = {name: make() for name, make in self._factories.items() if name not in kwargs}
            return super().bind(args, {**made, **kwargs})
        if len(args) != 2 or kwargs or not isinstance(args[1], self.item):
            raise PayloadInvalid(
                f"task {self.task_name!r} takes the store and one {self.item.__name__}: "
                f"enqueue({self.store_name}, {self.item.__name__}(…))"
            )
        return self.validate({str(self.store_name): args[0], **{name: getattr(args[1], name) for name in self._types}})

    def decode(self, payload: str, store_id: StoreId | None) -> dict[str, Any]:
        """Convert a stored payload to the arguments of a call with a chunk of one. Raises PayloadInvalid."""
        values = super().decode(payload, store_id)
        store_name = str(self.store_name)
        values.pop(store_name)
        try:
            item = self.item(**values)
        except Exception as error:  # the caller's own class may raise anything
            raise self._misfit(error) from None
        return {store_name: store_id, self._list_name: [item]}

    def join(self, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the arguments of one call from those of calls of the same store."""
        return {**calls[0], self._list_name: [item for call in calls for item in call[self._list_name]]}


_Field: Final[Any] = type(msgspec.field())  # pyright: ignore[reportUnknownVariableType]


def _fields(item: type[Any]) -> dict[str, Any] | None:
    """Return the defaults of a dataclass or msgspec.Struct by field; None for any other class.

    A field without a default has ``Parameter.empty``, one with a factory a field of msgspec.
    """
    fields: Sequence[Any]
    if isinstance(item, type) and issubclass(item, msgspec.Struct):  # pyright: ignore[reportUnnecessaryIsInstance]
        fields = msgspec.structs.fields(item)
    elif dataclasses.is_dataclass(item):
        fields = [field for field in dataclasses.fields(item) if field.init]
    else:
        return None
    missing = (dataclasses.MISSING, msgspec.NODEFAULT)
    return {
        field.name: field.default
        if field.default not in missing
        else inspect.Parameter.empty
        if field.default_factory in missing
        else msgspec.field(default_factory=field.default_factory)
        for field in fields
    }


def unquoted(error: Exception) -> str:
    """Return the text of msgspec's error without the quoted value."""
    return _QUOTED.sub(_UNQUOTED, str(error))


def _store_name(
    task_name: str, signature: inspect.Signature, hints: Mapping[str, Any], *, with_store: bool
) -> str | None:
    """Return the parameter that takes the store, None without one. Raises TaskInvalid."""
    if not with_store:
        if STORE_ARGUMENT in signature.parameters:
            raise TaskInvalid(f"task {task_name!r} takes store_id; declare it with store_task")
        return None
    names = store_arguments()
    for name in names:
        if name in signature.parameters:
            # The required name and type are known once Django has loaded the models; a check compares them.
            if hints.get(name) not in (UUID, int, str):
                text = f"{name} must be annotated with the type of the stores' keys: UUID, int or str"
                raise TaskInvalid(f"store task {task_name!r}: {text}")
            return name
    raise TaskInvalid(f"store task {task_name!r} needs a parameter for the store: {' or '.join(names[:2])}")


def _type_hints(task_name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TaskInvalid(
            f"task {task_name!r}: {error}; argument types are needed at run time: import them outside TYPE_CHECKING"
        ) from error
    except (AttributeError, TypeError, SyntaxError) as error:
        raise TaskInvalid(f"task {task_name!r}: an annotation cannot be evaluated: {error}") from error


def _custom_types(root: msgspec.inspect.Type) -> set[type[Any]]:
    """Return the types that msgspec does not know, such as models, files and Django's choices."""
    custom: set[type[Any]] = set()
    seen: set[int] = set()
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(node) not in seen:
            seen.add(id(node))
            if isinstance(node, msgspec.inspect.CustomType):
                custom.add(node.cls)
            waiting.extend(getattr(node, name) for name in node.__struct_fields__)
    return custom


def _aware(annotation: Any) -> Any:
    """Require a time zone for every datetime in an annotation, unless the project has none (``USE_TZ = False``)."""
    if annotation is DATETIME and uses_time_zones():
        return Annotated[DATETIME, msgspec.Meta(tz=True)]
    origin: Any = get_origin(annotation)
    arguments = get_args(annotation)
    if origin in (Union, UnionType):
        return Union[tuple(_aware(argument) for argument in arguments)]  # noqa: UP007 - built at run time
    if origin in (list, set, frozenset, tuple, dict):
        generic: Any = origin
        return generic[tuple(_aware(argument) for argument in arguments)]
    return annotation
