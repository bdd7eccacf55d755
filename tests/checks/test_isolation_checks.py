"""Runs the system checks of an app with stores whose models declare too little, as a user meets them."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from tests.conftest import manage

MODELS = """
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

class Book(models.Model):
    {fields}
    class Meta:
        {meta}
"""
RIGHT = 'constraints = [StoreIsolation(field="store", name="i")]'
KEYED = 'constraints = [StoreIsolation(field="store", name="i"), SameStoreForeignKey(field="shelf", name="k")]'
SHELF = "shelf = models.ForeignKey(Shelf, models.CASCADE, db_constraint=False)"


def check(folder: Path, fields: str, meta: str = "app_label = 'library'", migration: str = "operations = []") -> str:
    """Check an app with such a model; return its output."""
    app = folder / "library"
    (app / "migrations").mkdir(parents=True)
    for package in (app, app / "migrations"):
        (package / "__init__.py").touch()
    fields, meta = indent(fields, " " * 4).strip(), indent(meta, " " * 8).strip()
    (app / "models.py").write_text(MODELS.format(fields=fields, meta=meta))
    (app / "migrations" / "0001_first.py").write_text(
        "from django.db import migrations, models\nfrom salon_jobs.access import *\n"
        "from salon_jobs.access.operations import *\n"
        f"class Migration(migrations.Migration):\n    {migration}\n"
    )
    (folder / "with_library.py").write_text(
        "from tests.migrations.tenants_settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'library']"
    )
    done = manage(
        "check",
        "--tag",
        "salon_jobs",
        PYTHONPATH=str(folder),
        DJANGO_SETTINGS_MODULE="with_library",
        TENANTS_STORE_MODEL="tenants.Store",
        ONE_USER_URL="postgresql://u:p@127.0.0.1:1/x",
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert (done.returncode != 0) is ("salon_jobs.E" in done.stderr)
    return done.stderr


@pytest.mark.parametrize(
    ("fields", "meta"),
    [
        ("store = owned()", RIGHT),
        ("store = owned()", 'constraints = [SystemScope(name="s")]'),
        ("store = owned()", "managed = False"),
        ("label = models.TextField(unique=True)", "app_label = 'library'"),
        ("store_id = models.UUIDField()", 'constraints = [StoreIsolation(field="store_id", name="i")]'),
        ("store = models.OneToOneField('tenants.Store', models.CASCADE)", RIGHT),
        (f"store = owned()\n{SHELF}", KEYED),
        ("store = owned()\nlabel = models.TextField()", f"{RIGHT}\nunique_together = [('store', 'label')]"),
    ],
)
def test_what_is_right_is_left_alone(tmp_path: Path, fields: str, meta: str) -> None:
    assert check(tmp_path, fields, meta) == ""


@pytest.mark.parametrize(
    ("fields", "meta", "texts"),
    [
        ("store = owned()", "app_label = 'library'", ("W010) library.Book refers to stores", "StoreIsolation(field=")),
        (SHELF, "app_label = 'library'", ("W010) library.Book refers to stores or their rows",)),
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
        ("store = models.TextField()", RIGHT, ("E010) i: 'store' is not a UUID",)),
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
    ],
)
def test_what_is_missing_is_told_with_what_fixes_it(
    tmp_path: Path, fields: str, meta: str, texts: tuple[str, ...]
) -> None:
    output = check(tmp_path, fields, meta)
    for text in texts:
        assert text in output
    assert output.count("salon_jobs.") == 1, "and nothing else"


def test_a_model_that_an_operation_protects_is_left_alone(tmp_path: Path) -> None:
    operation = 'operations = [ProtectModel("library.Book", StoreIsolation(field="store", name="i"))]'
    assert check(tmp_path, "store = owned()", migration=operation) == ""
