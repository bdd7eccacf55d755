"""How text of others appears in messages: short, and with nothing that nobody sees."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salon_jobs.core.backoff import Backoff
from salon_jobs.core.errors import ConfigurationError, LeaseLost, SalonJobsError, StoreRefused, did_you_mean, suggest
from salon_jobs.core.text import bounded, short_repr, visible, visible_html, visible_json, visible_lines

# ESC, DEL, the C1 CSI, NEL, both separators, and what changes the direction of text.
UNSEEN = "\x1b\x7f\x9b\x85\u2028\u2029\u202a\u202e\u2066\u2069\u200b\ufeff\U000e0041\ud800"


class Unshowable:
    """Has no repr."""

    def __repr__(self) -> str:
        raise ZeroDivisionError


class Endless:
    """Has a long repr."""

    def __repr__(self) -> str:
        return "x" * 1_000_000


def test_unseen_characters_are_escaped() -> None:
    assert visible("a\x9bb\u202ec\nd\te") == r"a\x9bb\u202ec\nd\te"
    assert visible_lines("a\x9bb\nc\td\r") == "a\\x9bb\nc\td\\r"
    for each in UNSEEN:
        assert visible(each) == visible_lines(each) == ascii(each)[1:-1]


def test_page_keeps_lines_and_forms() -> None:
    page = '<p title="a\u202eb">\r\n\tc\x9bd\u200f</p><input value="e\u202ef">'
    shown = '<p title="a\\u202eb">\r\n\tc\\x9bd\\u200f</p><input value="e\u202ef">'
    assert visible_html(page) == shown
    assert visible_html(page, "\u200f") == shown.replace("\\u200f", "\u200f")


@pytest.mark.parametrize("text", ["plain", "カット\u3000予約", "Zoë", "👩\u200d🔬", "می\u200cخواهم", "10\xa0000 ¥"])
def test_ordinary_text_stays(text: str) -> None:
    assert visible(text) == visible_lines(text) == visible_json(text) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_keeps_its_meaning(text: str) -> None:
    written = visible_json(json.dumps({"a": text}, ensure_ascii=False))
    assert json.loads(written) == {"a": text}
    assert not any(each in written for each in UNSEEN)


def test_long_text_keeps_both_ends() -> None:
    text = bounded("begin" + "x" * 1_000_000 + "remedy")
    assert len(text) < 4100
    assert text.startswith("begin")
    assert text.endswith("remedy")
    assert "characters left out" in text
    assert bounded("short") == "short"


@pytest.mark.parametrize(
    "value",
    [
        "x" * 1_000_000,
        b"x" * 1_000_000,
        10**10_000,
        Endless(),
        ["x" * 1000] * 1000,
        {str(number): "x" * 1000 for number in range(1000)},
        "\x1b\u202e" * 1000,
    ],
    ids=["str", "bytes", "int", "object", "list", "dict", "unseen"],
)
def test_any_value_is_shown_short(value: object) -> None:
    text = short_repr(value)
    assert text
    assert len(text) < 2000
    assert not any(each in text for each in UNSEEN)


def test_value_without_repr() -> None:
    assert short_repr(Unshowable()).startswith("<Unshowable instance at ")


def test_texts_of_errors_are_bounded() -> None:
    for error in (SalonJobsError("x" * 1_000_000), StoreRefused("x" * 1_000_000), LeaseLost("\x1b[2J" + "x" * 5000)):
        assert len(str(error)) < 4200
    assert str(ConfigurationError("a\u202eb\nc")) == "a\\u202eb\nc"
    assert ConfigurationError().args == ()


@pytest.mark.parametrize("name", [None, 5, b"x", "x" * 1_000_000])
def test_suggestion_for_no_name(name: Any) -> None:
    assert did_you_mean(name, ["xyz"]) == ""
    assert suggest(name, ["xyz"]) == "choose one of xyz"


def test_backoff_of_huge_number() -> None:
    with pytest.raises(ValueError, match="timedelta") as caught:
        Backoff(base=10**10_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 1000
