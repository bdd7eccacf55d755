"""The system checks of an app with stores whose models declare too little, as a user meets them."""

from __future__ import annotations

import re
from textwrap import indent

import pytest

from tests.interpreter import manage

pytestmark = pytest.mark.process
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
# Fields and options of models.
STORE = "store = owned()"
SHELVES = f"{STORE}\nshelves = models.ManyToManyField(Shelf)"
LABEL = "label = models.TextField()"
UNIQUE_LABEL = "label = models.TextField(unique=True)"
SHARED = "kind = models.ForeignKey('contenttypes.ContentType', models.CASCADE)"
PAGE = "page = models.ForeignKey(Page, models.CASCADE)"
SHELF = "shelf = models.ForeignKey(Shelf, models.CASCADE, db_constraint=False)"
MEMBER = "member = models.ForeignKey(Reader, models.CASCADE)"
USER = "user = models.ForeignKey(Reader, models."
COMPOSITE = "number = models.IntegerField()\npk = models.CompositePrimaryKey('number', '{}')"
UNDECLARED = "app_label = 'library'"
RIGHT = 'constraints = [StoreIsolation(field="store", name="i")]'
BOTH = 'constraints = [StoreIsolation(field="store", name="i"), ManyToManyIsolation(field="shelves", name="m")]'
KEYED = 'constraints = [StoreIsolation(field="store", name="i"), SameStoreForeignKey(field="shelf", name="k")]'
OF_PAGE = 'constraints = [StoreIsolation(through="page", name="i")]'
OF_USER = 'DatabaseForeignKey(field="user", on_delete="CASCADE", name="k")'
ONCE = "models.UniqueConstraint(models.F('label'), name='once')"
# Those of which nothing is said; the first is protected by the migration.
RIGHTLY_DECLARED = (
    (STORE, UNDECLARED),
    (STORE, RIGHT),
    (STORE, 'constraints = [SystemScope(name="s")]'),
    (STORE, "managed = False"),
    (UNIQUE_LABEL, UNDECLARED),
    (f"{STORE}\nid = models.UUIDField(primary_key=True, default=uuid.uuid4)", RIGHT),
    (f"{STORE}\n{COMPOSITE.format('store_id')}", RIGHT),
    ("store_id = models.UUIDField()", 'constraints = [StoreIsolation(field="store_id", name="i")]'),
    ("store = models.OneToOneField('tenants.Store', models.CASCADE)", RIGHT),
    (f"{STORE}\n{SHELF}", KEYED),
    (SHELVES, BOTH),
    (f"{STORE}\nkinds = models.ManyToManyField(Kind)\n{SHARED}", RIGHT),
    (f"{PAGE}\n{LABEL}", f"{OF_PAGE}\nunique_together = [('page', 'label')]"),
    (f"{STORE}\n{PAGE}", OF_PAGE.replace("through", "field='store', through")),
    (
        f"{PAGE}\nshelf = models.ForeignKey(Shelf, models.CASCADE, null=True)",
        OF_PAGE.replace('"page"', "['page', 'shelf']"),
    ),
    (f"{STORE}\n{LABEL}", f"{RIGHT}\nunique_together = [('store', 'label')]"),
    (f"{STORE}\n{LABEL}", f"{RIGHT}\nunique_together = [('label', 'store')]"),
    (f"{STORE}\n{USER}DO_NOTHING, db_constraint=False)", f"{RIGHT[:-1]}, {OF_USER}]"),
    (f"{STORE}\n{USER}PROTECT)", RIGHT),
)
UNPROTECTED = "W010) library.Book refers to stores"
NOT_KEPT = "W012) nothing keeps the reference"
NO_PARENT = "E010) i: 'page'"
# What is said of others: the texts between the bars.
WRONG: tuple[tuple[str, str, str], ...] = (
    (STORE, UNDECLARED, f'{UNPROTECTED}|add StoreIsolation(field="store", name="…")'),
    (STORE, f"managed = False; {RIGHT}", 'E010) i: no migration isolates|ProtectModel("library.Book'),
    ("owner = owned()", UNDECLARED, f'{UNPROTECTED}|add StoreIsolation(field="owner", name="…")'),
    (SHELF, UNDECLARED, f"{UNPROTECTED} or their rows"),
    (f"{STORE}\n{MEMBER}", UNDECLARED, 'W010)|MembershipIsolation(field="store", user_field="member",'),
    (
        SHELVES,
        RIGHT,
        f'{UNPROTECTED.replace("Book", "Book_shelves")}|ManyToManyIsolation(field="shelves", name="…")|ProtectModel(',
    ),
    (SHELVES.replace("(Shelf)", "(Shelf, related_name='+')"), RIGHT, "E012) nothing keeps the reference 'book"),
    (PAGE, UNDECLARED, f'{UNPROTECTED}|StoreIsolation(through="page", name="…")'),
    ("loan = models.ForeignKey('Loan', models.CASCADE)", UNDECLARED, UNPROTECTED),
    (LABEL, "db_table = 'used'", "W014) rows of stores refer to library.Book,|SystemScope(name="),
    (LABEL, OF_PAGE, f"{NO_PARENT} is not a foreign key"),
    ("page = owned()", OF_PAGE, f'{NO_PARENT} refers to the store itself|field="page"'),
    (PAGE.replace("Page", "Kind"), OF_PAGE, f"{NO_PARENT} refers to library.Kind, which does not"),
    (PAGE.replace("CASCADE", "CASCADE, null=True"), OF_PAGE, f"{NO_PARENT} can be NULL|null=False"),
    (PAGE.replace("Page", "'self'"), OF_PAGE, f"{NO_PARENT} leads back to the model itself"),
    (PAGE.replace("Page", "Hidden"), OF_PAGE, f"{NO_PARENT} refers to library.Hidden.id, which web and worker may not"),
    (f"{PAGE}\n{UNIQUE_LABEL}", OF_PAGE, "W011) the unique field 'label' does not contain 'page'"),
    (f"{PAGE}\n{SHELF}", OF_PAGE, f"{NOT_KEPT} 'shelf' within one store|add 'shelf' to through"),
    (f"{STORE}\n{PAGE}", RIGHT, f"{NOT_KEPT} 'page' within one store|add 'page' to through"),
    (
        f"{PAGE}\nbefore = models.ForeignKey('self', models.CASCADE, null=True)",
        OF_PAGE,
        f"{NOT_KEPT} 'before'|a policy cannot read its own table",
    ),
    (f"{STORE}\n{UNIQUE_LABEL}", RIGHT, "W011) the unique field 'label'"),
    (
        f"{STORE}\n{UNIQUE_LABEL.replace('unique', 'primary_key')}",
        RIGHT,
        "W011) the unique field 'label' does not contain 'store'|reveals one store's values",
    ),
    (
        f"{STORE}\nother = models.IntegerField()\n{COMPOSITE.format('other')}",
        RIGHT,
        "W011) the unique primary key ('number', 'other') does not contain 'store'|make the store a part of it",
    ),
    (
        f"{STORE}\n{LABEL}",
        f"{RIGHT}\nunique_together = [('label', 'id')]",
        "W011) the unique unique_together ('label', 'id') does not contain 'store'",
    ),
    (
        f"{STORE}\n{LABEL}",
        f"{RIGHT[:-1]}, {ONCE}]",
        "W011) the unique constraint 'once'|UniqueConstraint(fields=[…]) with the store first",
    ),
    (
        f"{STORE}\n{SHELF.replace(', db_constraint=False', '')}",
        RIGHT,
        "W012) the foreign key 'shelf' does not include the store|SameStoreForeignKey(field=\"shelf\"",
    ),
    (f"{STORE}\n{SHELF}", RIGHT, "W013) nothing in the database enforces the reference 'shelf'"),
    ("owner = owned()", RIGHT, "E010) i: 'store' is not a field of the model|\"id\" in the store model itself"),
    ("store = models.TextField()", RIGHT, "E010) i: 'store' is of another type|each of which is a UUID"),
    (
        STORE,
        RIGHT.replace('name="i"', 'name="i", web={"SELECT": ["price"]}'),
        "E010) i: 'price' is not a field with a column|name fields of the model",
    ),
    (
        STORE,
        RIGHT.replace("StoreIsolation(", "MembershipIsolation(user_field='user', "),
        "E010) i: 'user' is not a field with a column",
    ),
    (STORE, KEYED, "E011) k: 'shelf' is not a foreign key"),
    (
        f"{STORE}\n{USER}SET_NULL, null=True)",
        RIGHT,
        "W015) a user to whom rows of other stores refer by 'user' cannot be deleted|DatabaseForeignKey(",
    ),
    (
        f"{STORE}\n{SHELF.replace('Shelf', repr('self'))}",
        KEYED,
        'E011) k refers to fields that are not unique|UniqueConstraint(fields=["store", "id"]|library.Book',
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


def test_right_declarations(said: dict[int, list[str]]) -> None:
    assert [number for number in said if number < len(RIGHTLY_DECLARED)] == []


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[case[2] for case in WRONG])
def test_missing_declaration(said: dict[int, list[str]], number: int) -> None:
    """It is told with what fixes it."""
    [message] = said[len(RIGHTLY_DECLARED) + number]
    for text in WRONG[number][2].split("|"):
        assert text in message
