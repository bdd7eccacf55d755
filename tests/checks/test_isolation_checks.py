"""Runs the system checks of an app with stores whose models declare too little, as a user meets them."""

from __future__ import annotations

import re
from textwrap import indent

import pytest

from tests.conftest import manage

APP = """
import uuid
from django.db import models
from salon_jobs.access import *

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

class Kind(models.Model):
    class Meta:
        constraints = [SystemScope(name="kind_scope")]

class Reader(models.Model):
    class Meta:
        constraints = [SystemScope(name="reader_scope")]

class Hidden(models.Model):
    store = owned()
    class Meta:
        constraints = [StoreIsolation(field="store", name="i", web=[], worker={"SELECT": ["store"]})]

class Page(models.Model):
    shelf = models.ForeignKey(Shelf, models.CASCADE)
    class Meta:
        constraints = [StoreIsolation(through="shelf", name="page_isolation")]
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
    operations = [
        ProtectModel("library.Book0", StoreIsolation(field="store", name="i")),
        ProtectModel("library.Book{kinds}_kinds", StoreIsolation(through="book{kinds}", name="i")),
        ProtectModel("library.Book{one_side}_shelves", StoreIsolation(through="shelf", name="i")),
    ]
"""
BOTH = 'constraints = [StoreIsolation(field="store", name="i"), ManyToManyIsolation(field="shelves", name="m")]'
SHARED = "kind = models.ForeignKey('contenttypes.ContentType', models.CASCADE)"
PAGE = "page = models.ForeignKey(Page, models.CASCADE)"
# A table that belongs to stores by an undeclared one, and one that refers to what nobody declared.
OTHERS = """
class Loan(models.Model):
    page = models.ForeignKey(Page, models.CASCADE)
    used = models.ForeignKey("Book{used}", models.CASCADE)
    class Meta:
        app_label = "library"
"""
SETTINGS = """
from tests.migrations.tenants_settings import *

INSTALLED_APPS = [*INSTALLED_APPS, "django.contrib.auth", "library"]
AUTH_USER_MODEL = "library.Reader"
SALON_JOBS = {{**SALON_JOBS, "MEMBERSHIP_MODEL": "library.Book{membership}"}}
SILENCED_SYSTEM_CHECKS = ["salon_jobs.W030"]
"""
IN_MIGRATION = {"kinds": "kinds =", "one_side": "related_name='+'"}
RIGHT = 'constraints = [StoreIsolation(field="store", name="i")]'
KEYED = 'constraints = [StoreIsolation(field="store", name="i"), SameStoreForeignKey(field="shelf", name="k")]'
SHELF = "shelf = models.ForeignKey(Shelf, models.CASCADE, db_constraint=False)"
MEMBER = "member = models.ForeignKey(Reader, models.CASCADE)"
THROUGH_PAGE = 'constraints = [StoreIsolation(through="page", name="i")]'
USER = "user = models.ForeignKey(Reader, models."
OF_USER = 'DatabaseForeignKey(field="user", on_delete="CASCADE", name="k")'
UNDECLARED = "app_label = 'library'"
# Those of which nothing is said; the first is protected by the migration.
RIGHTLY_DECLARED = (
    ("store = owned()", UNDECLARED),
    ("store = owned()", RIGHT),
    ("store = owned()", 'constraints = [SystemScope(name="s")]'),
    ("store = owned()", "managed = False"),
    ("label = models.TextField(unique=True)", UNDECLARED),
    ("store = owned()\nid = models.UUIDField(primary_key=True, default=uuid.uuid4)", RIGHT),
    ("store_id = models.UUIDField()", 'constraints = [StoreIsolation(field="store_id", name="i")]'),
    ("store = models.OneToOneField('tenants.Store', models.CASCADE)", RIGHT),
    (f"store = owned()\n{SHELF}", KEYED),
    ("store = owned()\nshelves = models.ManyToManyField(Shelf)", BOTH),
    (f"store = owned()\nkinds = models.ManyToManyField(Kind)\n{SHARED}", RIGHT),
    (f"{PAGE}\nlabel = models.TextField()", f"{THROUGH_PAGE}\nunique_together = [('page', 'label')]"),
    (f"store = owned()\n{PAGE}", THROUGH_PAGE.replace("through", "field='store', through")),
    (
        f"{PAGE}\nshelf = models.ForeignKey(Shelf, models.CASCADE, null=True)",
        THROUGH_PAGE.replace('"page"', "['page', 'shelf']"),
    ),
    ("store = owned()\nlabel = models.TextField()", f"{RIGHT}\nunique_together = [('store', 'label')]"),
    ("store = owned()\nlabel = models.TextField()", f"{RIGHT}\nunique_together = [('label', 'store')]"),
    (f"store = owned()\n{USER}DO_NOTHING, db_constraint=False)", f"{RIGHT[:-1]}, {OF_USER}]"),
    (f"store = owned()\n{USER}PROTECT)", RIGHT),
)
WRONG: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "store = owned()",
        UNDECLARED,
        ("W010) library.Book refers to stores", 'add StoreIsolation(field="store", name="…")'),
    ),
    (
        "owner = owned()",
        UNDECLARED,
        ("W010) library.Book refers to stores", 'add StoreIsolation(field="owner", name="…")'),
    ),
    (SHELF, UNDECLARED, ("W010) library.Book refers to stores or their rows",)),
    (f"store = owned()\n{MEMBER}", UNDECLARED, ("W010)", 'MembershipIsolation(field="store", user_field="member",')),
    (
        "store = owned()\nshelves = models.ManyToManyField(Shelf)",
        RIGHT,
        (
            "W010) library.Book_shelves refers to stores",
            'ManyToManyIsolation(field="shelves", name="…")',
            "ProtectModel(",
        ),
    ),
    (
        "store = owned()\nshelves = models.ManyToManyField(Shelf, related_name='+')",
        RIGHT,
        ("E012) nothing keeps the reference 'book",),
    ),
    (PAGE, UNDECLARED, ("W010) library.Book refers to stores", 'StoreIsolation(through="page", name="…")')),
    ("loan = models.ForeignKey('Loan', models.CASCADE)", UNDECLARED, ("W010) library.Book refers to stores",)),
    (
        "label = models.TextField()",
        "db_table = 'used'",
        ("W014) rows of stores refer to library.Book,", "SystemScope(name="),
    ),
    ("label = models.TextField()", THROUGH_PAGE, ("E010) i: 'page' is not a foreign key",)),
    ("page = owned()", THROUGH_PAGE, ("E010) i: 'page' refers to the store itself", 'field="page"')),
    (
        "page = models.ForeignKey(Kind, models.CASCADE)",
        THROUGH_PAGE,
        ("E010) i: 'page' refers to library.Kind, which does not",),
    ),
    (PAGE.replace("CASCADE", "CASCADE, null=True"), THROUGH_PAGE, ("E010) i: 'page' can be NULL", "null=False")),
    (
        "page = models.ForeignKey('self', models.CASCADE)",
        THROUGH_PAGE,
        ("E010) i: 'page' leads back to the model itself",),
    ),
    (
        "page = models.ForeignKey(Hidden, models.CASCADE)",
        THROUGH_PAGE,
        ("E010) i: 'page' refers to library.Hidden.id, which web and worker may not SELECT",),
    ),
    (
        f"{PAGE}\nlabel = models.TextField(unique=True)",
        THROUGH_PAGE,
        ("W011) the unique field 'label' does not contain 'page'",),
    ),
    (
        f"{PAGE}\n{SHELF}",
        THROUGH_PAGE,
        ("W012) nothing keeps the reference 'shelf' within one store", "add 'shelf' to through"),
    ),
    (
        f"store = owned()\n{PAGE}",
        RIGHT,
        ("W012) nothing keeps the reference 'page' within one store", "add 'page' to through"),
    ),
    (
        f"{PAGE}\nbefore = models.ForeignKey('self', models.CASCADE, null=True)",
        THROUGH_PAGE,
        ("W012) nothing keeps the reference 'before'", "a policy cannot read its own table"),
    ),
    ("store = owned()\nlabel = models.TextField(unique=True)", RIGHT, ("W011) the unique field 'label'",)),
    (
        "store = owned()\nlabel = models.TextField(primary_key=True)",
        RIGHT,
        ("W011) the unique field 'label' does not contain 'store'", "reveals one store's values"),
    ),
    (
        "store = owned()\nlabel = models.TextField()",
        f"{RIGHT}\nunique_together = [('label', 'id')]",
        ("W011) the unique unique_together ('label', 'id') does not contain 'store'",),
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
        f"store = owned()\n{USER}SET_NULL, null=True)",
        RIGHT,
        ("W015) a user to whom rows of other stores refer by 'user' cannot be deleted", "DatabaseForeignKey("),
    ),
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
    cases = [*RIGHTLY_DECLARED, *(case[:2] for case in WRONG)]
    numbers = {name: next(n for n, case in enumerate(cases) if text in case[0]) for name, text in IN_MIGRATION.items()}
    (app / "migrations" / "0001_first.py").write_text(MIGRATION.format(**numbers))
    models = APP + OTHERS.format(used=next(n for n, case in enumerate(cases) if "used" in case[1]))
    for number, (fields, meta) in enumerate(cases):
        inner = {"fields": indent(fields, " " * 4).strip(), "meta": indent(meta, " " * 8).strip()}
        models += MODEL.format(number=number, **inner)
    (app / "models.py").write_text(models)
    membership = next(number for number, case in enumerate(cases) if MEMBER in case[0])
    (folder / "with_library.py").write_text(SETTINGS.format(membership=membership))
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
        if message.startswith("library.Loan"):
            continue
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
