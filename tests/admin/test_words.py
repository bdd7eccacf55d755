"""What the admin says can be translated: names of columns, fields and filters, and the text of its templates."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib import admin
from django.utils.functional import Promise

import salon_jobs

TEMPLATES = sorted((Path(salon_jobs.__file__).parent / "templates/admin/salon_jobs").glob("*.html"))


def test_names_of_columns_and_filters_are_translated_where_they_are_shown() -> None:
    ours: list[Any] = [each for model, each in admin.site._registry.items() if model._meta.app_label == "salon_jobs"]
    offered = [each for one in ours for each in one.list_filter if hasattr(each, "parameter_name")]
    filters = {each.__name__: each.title for each in offered}
    functions = {f"{one.opts}.{name}": getattr(type(one), name) for one in ours for name in dir(type(one))}
    named = {name: each.short_description for name, each in functions.items() if hasattr(each, "short_description")}
    assert len(named) > 100
    assert len(filters) > 10
    assert [name for name, text in (named | filters).items() if not isinstance(text, Promise)] == []


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_no_template_has_a_text_that_is_not_translated(template: Path) -> None:
    text = re.sub(r"{% blocktranslate.*?endblocktranslate %}|{#.*?#}", "", template.read_text(), flags=re.DOTALL)
    assert re.findall(r"<[a-z0-9]+(?: [^<>]*)?>([^<>{}%]*[A-Za-z]{2}[^<>{}%]*)</", text) == []
    assert re.findall(r'(?:aria-label|title)="([A-Z][^"{}<>]*)"', text) == []


def test_only_texts_that_makemessages_finds_are_translated() -> None:
    names, built = {"gettext", "gettext_lazy", "gettext_noop", "ngettext", "ngettext_lazy", "_"}, list[str]()
    for path in Path(salon_jobs.__file__).parent.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        of_texts = [each for each in calls if isinstance(each.func, ast.Name) and each.func.id in names]
        built += [f"{path}:{each.lineno}" for each in of_texts if isinstance(each.args[0], ast.JoinedStr | ast.BinOp)]
    assert built == []
