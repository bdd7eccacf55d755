"""Runs the system checks of an app with stores whose models declare too little, as a user meets them."""

from __future__ import annotations

import re
from textwrap import indent

import pytest

from tests.conftest import manage

APP = """
import uuid
from django.db import models
from salon_jobs.access import MembershipIsolation, SameStoreForeignKey, StoreIsolation, SystemScope

def owned():
    return models.ForeignKey("tenants.Store", models.CASCADE)

class Shelf(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    store = owned()
    class Meta:
        constraints = [
            StoreIsolation(field="store", name="shelf_isolation"),
            models.UniqueConstraint(fields=["store", "id"], name="shelf_store_id"),
        ]
"""
MODEL = """
class Book{number}(models.Model):
    {fields}
    class Meta:
        {meta}
"""
MIGRATION = """
from django.db import migrations
from salon_jobs.access import StoreIsolation
from salon_jobs.access.operations import ProtectModel

class Migration(migrations.Migration):
    operations = [ProtectModel("library.Book0", StoreIsolation(field="store", name="i"))]
"""
RIGHT = 'constraints = [StoreIsolation(field="store", name="i")]'
KEYED = 'constraints = [StoreIsolation(field="store", name="i"), SameStoreForeignKey(field="shelf", name="k")]'
SHELF = "shelf = models.ForeignKey(Shelf, models.CASCADE, db_constraint=False)"
UNDECLARED = "app_label = 'library'"
# Those of which nothing is said; the first is protected by the migration.
RIGHTLY_DECLARED = (
    ("store = owned()", UNDECLARED),
    ("store = owned()", RIGHT),
    ("store = owned()", 'constraints = [SystemScope(name="s")]'),
    ("store = owned()", "managed = False"),
    ("label = models.TextField(unique=True)", UNDECLARED),
    ("store_id = models.UUIDField()", 'constraints = [StoreIsolation(field="store_id", name="i")]'),
    ("store = models.OneToOneField('tenants.Store', models.CASCADE)", RIGHT),
    (f"store = owned()\n{SHELF}", KEYED),
    ("store = owned()\nlabel = models.TextField()", f"{RIGHT}\nunique_together = [('store', 'label')]"),
)
WRONG: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("store = owned()", UNDECLARED, ("W010) library.Book refers to stores", "StoreIsolation(field=")),
    (SHELF, UNDECLARED, ("W010) library.Book refers to stores or their rows",)),
    (
        "store = owned()\nshelves = models.ManyToManyField(Shelf)",
        RIGHT,
        ("W010) library.Book_shelves refers to stores or their rows", "a through model"),
    ),
    ("store = owned()\nlabel = models.TextField(unique=True)", RIGHT, ("W011) the unique field 'label'",)),
    (
        "store = owned()\nlabel = models.TextField()",
        f"{RIGHT}\nunique_together = [('label', 'store')]",
        ("W011) the unique unique_together ('label', 'store') does not begin with 'store'",),
    ),
    (
        "store = owned()\nlabel = models.TextField()",
        f"{RIGHT[:-1]}, models.UniqueConstraint(models.F('label'), name='once')]",
        ("W011) the unique constraint 'once'", "UniqueConstraint(fields=[…]) with the store first"),
    ),
    (
        f"store = owned()\n{SHELF.replace(', db_constraint=False', '')}",
        RIGHT,
        ("W012) the foreign key 'shelf' does not include the store", 'SameStoreForeignKey(field="shelf"'),
    ),
    (f"store = owned()\n{SHELF}", RIGHT, ("W013) nothing in the database enforces the reference 'shelf'",)),
    ("owner = owned()", RIGHT, ("E010) i: 'store' is not a field of the model", '"id" in the store model itself')),
    ("store = models.TextField()", RIGHT, ("E010) i: 'store' is of another type", "each of which is a UUID")),
    (
        "store = owned()",
        RIGHT.replace('name="i"', 'name="i", web={"SELECT": ["price"]}'),
        ("E010) i: 'price' is not a field with a column", "name fields of the model"),
    ),
    (
        "store = owned()",
        RIGHT.replace("StoreIsolation(", "MembershipIsolation(user_field='user', "),
        ("E010) i: 'user' is not a field with a column",),
    ),
    ("store = owned()", KEYED, ("E011) k: 'shelf' is not a foreign key",)),
    (
        "store = owned()\nshelf = models.ForeignKey('self', models.CASCADE, db_constraint=False)",
        KEYED,
        ("E011) k refers to fields that are not unique", 'UniqueConstraint(fields=["store", "id"]', "library.Book"),
    ),
)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """Check an app with all these models; return what is said of each, as if it were called Book."""
    folder = tmp_path_factory.mktemp("project")
    app = folder / "library"
    (app / "migrations").mkdir(parents=True)
    for package in (app, app / "migrations"):
        (package / "__init__.py").touch()
    (app / "migrations" / "0001_first.py").write_text(MIGRATION)
    models = APP
    for number, (fields, meta) in enumerate((*RIGHTLY_DECLARED, *(case[:2] for case in WRONG))):
        inner = {"fields": indent(fields, " " * 4).strip(), "meta": indent(meta, " " * 8).strip()}
        models += MODEL.format(number=number, **inner)
    (app / "models.py").write_text(models)
    (folder / "with_library.py").write_text(
        "from tests.migrations.tenants_settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'library']"
    )
    done = manage(
        *("check", "--tag", "salon_jobs"),
        PYTHONPATH=str(folder),
        DJANGO_SETTINGS_MODULE="with_library",
        TENANTS_STORE_MODEL="tenants.Store",
        ONE_USER_URL="postgresql://u:p@127.0.0.1:1/x",
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr, done.stderr
    messages: dict[int, list[str]] = {}
    for message in re.split(r"\n(?=\S+: \(salon_jobs)", done.stderr)[1:]:
        [number] = set(re.findall(r"library\.Book(\d+)", message))
        messages.setdefault(int(number), []).append(message.replace(f"Book{number}", "Book"))
    return messages


def test_what_is_right_is_left_alone(said: dict[int, list[str]]) -> None:
    assert [number for number in said if number < len(RIGHTLY_DECLARED)] == []


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[case[2][0] for case in WRONG])
def test_what_is_missing_is_told_with_what_fixes_it(said: dict[int, list[str]], number: int) -> None:
    [message] = said[len(RIGHTLY_DECLARED) + number]
    for text in WRONG[number][2]:
        assert text in message
