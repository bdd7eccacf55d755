"""Shows what a task's signature accepts, refuses and converts, at enqueue and before the run."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from salon_jobs.conf.store_key import store_key
from salon_jobs.core.errors import PayloadInvalid, TaskInvalid
from salon_jobs.jobs.payload import Arguments, PayloadType
from tests.support import new_store_id

if TYPE_CHECKING:
    from fractions import Fraction

STORE = new_store_id()
DESCRIPTION = re.escape(store_key().description)
JST = timezone(timedelta(hours=9))


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Item:
    name: str
    sizes: list[int] = field(default_factory=list)
    since: datetime | None = None


def rich(
    store_id: UUID,
    day: date,
    at: datetime,
    price: Decimal,
    colour: Colour,
    item: Item,
    refs: dict[str, UUID],
    kind: Literal["a", "b"] = "a",
    *,
    times: list[datetime] | None = None,
    tags: list[str] = ["x"],  # noqa: B006 - copied
) -> None:
    """Take one of everything."""


def plain(note: str = "", count: int = 0, share: float = 0.5, data: dict[str, Any] | None = None) -> None:
    """Take plain values."""


def payload_type(function: Callable[..., Any], *, with_store: bool = False) -> PayloadType:
    return PayloadType("the-task", function, with_store=with_store)


RICH = payload_type(rich, with_store=True)
PLAIN = payload_type(plain)


def rich_arguments() -> dict[str, Any]:
    return {
        "store_id": STORE,
        "day": date(2026, 5, 5),
        "at": datetime(2026, 5, 6, 3, tzinfo=JST),
        "price": Decimal("12.50"),
        "colour": Colour.RED,
        "item": Item("comb", [1, 2]),
        "refs": {"a": uuid4()},
    }


def test_rich_signature_comes_back() -> None:
    arguments = rich_arguments()
    bound = RICH.bind((), arguments)
    assert bound.store_id == STORE
    assert "store_id" not in bound.json, "the store lives in its column alone"
    assert '"at":"2026-05-05T18:00:00Z"' in bound.json, "instants are written in UTC"
    for _ in range(2):
        decoded = RICH.decode(bound.json.replace(',"tags":["x"]', ""), bound.store_id)
        assert decoded == {**arguments, "kind": "a", "times": None, "tags": ["x"]}
        decoded["tags"].append("y")  # a mutable default is not shared
    assert RICH.decode(bound.json, bound.store_id)["tags"] == ["x"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"day": "yesterday"}, r"RFC3339.*\$\.day"),
        ({"at": datetime(2026, 5, 5)}, r"timezone.*\$\.at"),  # noqa: DTZ001 - the point
        ({"at": "2026-05-05T00:00:00"}, r"timezone.*\$\.at"),
        ({"at": datetime.min.replace(tzinfo=JST)}, r"\$\.at|calendar|range"),
        ({"times": [datetime(2026, 5, 5)]}, r"timezone.*\$\.times\[0\]"),  # noqa: DTZ001 - the point
        ({"item": {"sizes": []}}, r"`name`.*\$\.item"),
        ({"item": {"name": "comb", "sizes": ["S"]}}, r"Expected `int`, got `str` - at `\$\.item\.sizes\[0\]`"),
        ({"kind": "c"}, r"enum.*\$\.kind"),
        ({"store_id": "no key"}, rf"{DESCRIPTION}.*\$\.store_id"),
        ({"store_id": None}, rf"the store must be {DESCRIPTION}, not NoneType - at `\$\.store_id`"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_wrong_argument_is_refused_with_path(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(PayloadInvalid, match=expected) as caught:
        RICH.bind((), {**rich_arguments(), **change})
    assert "'the-task'" in str(caught.value)


LOOP: dict[str, Any] = {}
LOOP["again"] = LOOP


@pytest.mark.parametrize("value", [object(), LOOP, "\ud800", {"deep": "a\0b"}, {"a\0b": 1}])
def test_values_that_json_cannot_hold_are_refused(value: Any) -> None:
    with pytest.raises(PayloadInvalid):
        PLAIN.bind((), {"data": {"x": value}})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nonfinite_number_is_refused_with_path(number: float) -> None:
    """It never becomes null."""
    with pytest.raises(PayloadInvalid, match=r"\$\.data\.shares\[1\]"):
        PLAIN.bind((), {"data": {"shares": [0.5, number]}})


def test_equal_values_are_the_same_payload() -> None:
    instant = datetime(2026, 5, 6, 3, tzinfo=JST)
    ref = uuid4()
    one = {"at": instant, "item": Item("comb", since=instant), "times": [instant], "refs": {"a": ref}, "price": "12.50"}
    other = {
        "at": "2026-05-06T03:00:00+09:00",
        "item": {"name": "comb", "sizes": [], "since": "2026-05-05T18:00:00Z"},
        "times": (instant.astimezone(UTC),),
        "refs": {"a": str(ref).upper()},
        "price": Decimal("12.50"),
        "store_id": str(STORE).upper() if isinstance(STORE, UUID) else str(STORE),
        "day": "2026-05-05",
        "colour": "red",
    }
    assert RICH.bind((), {**rich_arguments(), **one}) == RICH.bind((), {**rich_arguments(), **other})


@dataclass
class Refuses:
    number: int

    def __post_init__(self) -> None:
        raise KeyError(self.number)


def refuses(value: Refuses | None = None) -> None:
    """Take what cannot be made."""


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        (payload_type(refuses), '{"value": {"number": 1}}'),
        (payload_type(refuses), '{"value": ' + "[" * 100_000 + "]" * 100_000 + "}"),
        (PLAIN, '{"data": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"),
    ],
    ids=["refused by its class", "too deep", "too deep for any"],
)
def test_unreadable_payload_is_invalid(payload: PayloadType, stored: str) -> None:
    with pytest.raises(PayloadInvalid):
        payload.decode(stored, None)


@example(note="a\\u0000b", count=0)
@given(note=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), count=st.integers())
def test_any_text_and_number_survive(note: str, count: int) -> None:
    decoded = PLAIN.decode(PLAIN.bind((note, count), {}).json, None)
    assert (decoded["note"], decoded["count"]) == (note, count)


@given(st.datetimes(datetime(1752, 1, 1), datetime(2300, 1, 1), timezones=st.just(JST)))  # noqa: DTZ001 - it adds the zone
def test_any_instant_survives(at: datetime) -> None:
    decoded = RICH.decode(RICH.bind((), {**rich_arguments(), "at": at}).json, STORE)
    assert decoded["at"] == at


@pytest.mark.parametrize("stored", ["[]", "5", "null", '{"note": 5}', '{"gone": 1}', '{"note": "a", "gone": 1}'])
def test_outdated_payload_is_refused(stored: str) -> None:
    for payload, store in ((PLAIN, None), (RICH, STORE)):
        with pytest.raises(PayloadInvalid):
            payload.decode(stored, store)
    with pytest.raises(PayloadInvalid, match="no store_id"):
        RICH.decode("{}", None)
    # An argument that was added later, with a default, fits.
    assert PLAIN.decode('{"note": "old"}', None) == {"note": "old", "count": 0, "share": 0.5, "data": None}


def positional_only(a: int, /) -> None: ...
def variadic(*a: int) -> None: ...
def keywords(**a: int) -> None: ...
def bare(a) -> None: ...  # type: ignore[no-untyped-def]
def unknown_type(a: Fraction) -> None: ...
def impossible_union(a: Item | RealItem) -> None: ...
def with_float_store(store_id: float) -> None: ...
def with_store(store_id: UUID) -> None: ...


@dataclass
class RealItem:
    name: str


@pytest.mark.parametrize(
    ("function", "store", "expected"),
    [
        (positional_only, False, "'a' must be an ordinary named parameter"),
        (variadic, False, "'a' must be an ordinary named parameter"),
        (keywords, False, "'a' must be an ordinary named parameter"),
        (bare, False, "'a' needs a type annotation"),
        (unknown_type, False, "import them outside TYPE_CHECKING"),
        (impossible_union, False, "cannot be a payload"),
        (plain, True, "needs a parameter for the store: store_id"),
        (with_float_store, True, "must be annotated with the type of the stores' keys"),
        (with_store, False, "declare it with store_task"),
    ],
)
def test_impossible_signature_is_refused(function: Callable[..., Any], store: bool, expected: str) -> None:
    with pytest.raises(TaskInvalid, match=expected):
        payload_type(function, with_store=store)


class Card(msgspec.Struct, tag="card"):
    """Is one way to pay."""

    number: str


class Cash(msgspec.Struct, tag="cash"):
    """Is another."""


def pay(by: Card | Cash, colour: Literal["red"] = "red") -> None: ...


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ('{"by": {"type": "hush"}}', "Invalid value - at `$.by.type`"),
        ('{"by": {"type": "cash"}, "colour": "hush"}', "Invalid enum value - at `$.colour`"),
        ('{"by": {"type": "cash"}, "colour": "x - at `$hush"}', "Invalid enum value - at `$.colour`"),
    ],
)
def test_refusal_quotes_no_value(payload: str, message: str) -> None:
    with pytest.raises(PayloadInvalid) as raised:
        PayloadType("pay", pay, with_store=False).decode(payload, None)
    assert str(raised.value) == f"task 'pay': {message}"
    assert raised.value.__cause__ is None


def test_large_arguments_are_refused(settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "MAX_PAYLOAD": 1024}
    PLAIN.bind((), {"note": "x" * 900})
    too_large = r"bytes of JSON; at most 1,024 are allowed \(SALON_JOBS\['MAX_PAYLOAD'\]\)"
    with pytest.raises(PayloadInvalid, match=rf"1,0\d\d {too_large}"):
        PLAIN.bind((), {"note": "x" * 1020})


def charge(parameter: str, of: str = "UUID") -> PayloadType:
    """Return the payload of a store task whose parameter for the store has this name."""
    space: dict[str, Any] = {"UUID": UUID}
    exec(f"def charge({parameter}: {of}, amount: int = 5) -> None: ...", space)
    return PayloadType("charge", space["charge"], with_store=True)


@pytest.mark.parametrize("name", ["store_id", "salon_chain_id", "salonchain_id"])
def test_store_parameter_may_have_models_name(settings: Any, name: str) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "STORE_MODEL": "salon.SalonChain"}
    payload, store = charge(name), uuid4()
    for args, kwargs in (((), {name: store}), ((), {"store_id": store}), ((store, 5), {})):
        assert payload.bind(args, kwargs) == Arguments(store, '{"amount":5}')
    assert payload.decode('{"amount":5}', store) == {name: store, "amount": 5}
    with pytest.raises(PayloadInvalid, match=f"must be a UUID, not int - at `\\$.{name}`"):
        payload.bind((), {name: 5, "amount": 5})


@pytest.mark.parametrize(("value", "shown"), [(0, "0"), (-1, "-1"), ("x", "str"), (True, "bool")])
def test_impossible_store_number_is_shown(settings: Any, value: Any, shown: str) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "STORE_MODEL": "auth.Group"}
    with pytest.raises(PayloadInvalid, match=f"a whole number from 1, not {shown} - at"):
        charge("group_id", "int").bind((), {"group_id": value})


def test_error_names_store_parameters(settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "STORE_MODEL": "accounts.Organization"}
    with pytest.raises(TaskInvalid, match="needs a parameter for the store: store_id or organization_id"):
        PayloadType("charge", plain, with_store=True)
