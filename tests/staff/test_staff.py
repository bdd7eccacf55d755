"""Works in the admin in one store at a time, by choice: as the real roles and in strict mode."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID, uuid4

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, models
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.test import Client, override_settings
from django.urls import path

from project.salon.models import Customer, CustomerNote, Membership, Store
from salon_jobs import current_store_id
from salon_jobs.access import StoreIsolation, SystemScope
from salon_jobs.access.strict import refuse_without_store
from salon_jobs.conf import settings as conf
from salon_jobs.staff import StoreAdminMixin, StoreAdminSite
from salon_jobs.tenancy import expect_no_rows
from tests.docs.markdown import blocks, read
from tests.interpreter import ROOT, run_command
from tests.settings import MIDDLEWARE, SALON_JOBS
from tests.staff.names import operator_reads_names
from tests.support import change, new_store_id, row, seen

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin  # generic only for type checkers


class CustomerAdmin(ModelAdmin):
    """ModelAdmin as a project has it, which knows nothing of stores."""

    search_fields = ("name",)
    ordering = ("name",)
    fields = ("store", "name", "email")

    def get_urls(self) -> list[Any]:
        return [path("export/", self.admin_site.admin_view(self.export)), *super().get_urls()]

    def export(self, request: HttpRequest) -> HttpResponseBase:
        return StreamingHttpResponse(f"{name}\n" for name in Customer.objects.values_list("name", flat=True))


class NoteAdmin(ModelAdmin):
    """ModelAdmin whose form does not show the store."""

    fields = ("customer", "body")
    autocomplete_fields = ("customer",)

    def save_model(self, request: HttpRequest, obj: CustomerNote, form: Any, change: bool) -> None:
        store = current_store_id()
        assert store is not None
        obj.store_id = store  # pyright: ignore[reportAttributeAccessIssue] - Django's own name
        super().save_model(request, obj, form, change)


class NoteInline(admin.TabularInline[CustomerNote, Customer]):
    """Inline as a project has it."""

    model = CustomerNote
    fields = ("store", "body")
    extra = 1


site = StoreAdminSite(name="staff")
site.register(Customer, CustomerAdmin)
site.register([CustomerNote], NoteAdmin)
site.register(Store)
site.register(User)
urlpatterns = [path("admin/", site.urls)]
STAFF = "/admin/"
CUSTOMERS = f"{STAFF}salon/customer/"
NOTES = f"{STAFF}salon/customernote/"
FIRST_KEY = 1 + uuid4().int % 2**40


class WebRouter:
    """Sends everything to the web role, as a web process does."""

    def db_for_read(self, model: Any, **_: object) -> str | None:
        return "web"

    db_for_write = db_for_read


@pytest.fixture
def two(database: None, stores: list[UUID]) -> Iterator[list[UUID]]:
    """Be a web process in strict mode, with a customer in each of two stores."""
    for number, store in enumerate(stores[:2]):
        change("UPDATE store SET name = %s WHERE id = %s", ("Acme", "Beta")[number], store)
        row("customer", store_id=store, name=f"of-{number}", email="")
    wanted = {**SALON_JOBS, "DATABASE": "web", "OPERATOR_DATABASE": "operator"}
    wrappers = {alias: list(connections[alias].execute_wrappers) for alias in ("web", "operator")}
    for alias in wrappers:
        refuse_without_store(connections[alias])
    with override_settings(DATABASE_ROUTERS=[WebRouter()], SALON_JOBS=wanted, ROOT_URLCONF=__name__):
        yield stores[:2]
    for alias, before in wrappers.items():
        connections[alias].execute_wrappers[:] = before
    change("TRUNCATE customer_note, customer, membership, django_admin_log, auth_user CASCADE")


def staff(*stores: UUID, may: tuple[str, ...] = (), everything: bool = False) -> Client:
    """Sign in as staff who may do everything with customers, belong to stores and have these permissions."""
    user = User.objects.create(username=f"user {uuid4()}", is_staff=True, is_superuser=everything)
    allowed = {"view_customer", "add_customer", "change_customer", "delete_customer", *may}
    user.user_permissions.set(Permission.objects.filter(codename__in=allowed))
    for store in stores:
        row("membership", store_id=store, user_id=user.pk)
    client = Client()
    client.force_login(user)
    return client


def choose(client: Client, store: object, after: str = CUSTOMERS) -> Any:
    return client.post(f"{STAFF}choose-store/", {"store": str(store), "next": after})


def text_of(answer: Any, status: int = 200) -> str:
    text: str = answer.content.decode()
    assert answer.status_code == status, text
    return text


def offered(text: str) -> list[str]:
    """Return the names of the stores that a page offers."""
    return re.findall(r'name="store" value="[^"]+">(\w+)<', text)


def log() -> list[tuple[Any, ...]]:
    return seen("SELECT object_repr, change_message FROM django_admin_log ORDER BY id")


def test_list_without_choice_offers_switcher(two: list[UUID]) -> None:
    for client in (staff(everything=True), staff(two[0])):
        text = text_of(client.get(CUSTOMERS))
        assert "Customers belong to one store at a time, and none is chosen." in text
        assert f'action="{STAFF}choose-store/"' in text
        assert "0 customers" not in text
        assert "of-0" not in text
    assert ">Acme<" not in text_of(staff(everything=True).get(f"{CUSTOMERS}?q={two[0]}")), "it searches customers"


def test_pages_run_in_chosen_store(two: list[UUID]) -> None:
    client = staff(everything=True)
    for number, store in enumerate(two):
        answer = choose(client, store)
        assert (answer.status_code, answer["Location"]) == (302, CUSTOMERS)
        text = text_of(client.get(CUSTOMERS))
        assert [f"of-{each}" in text for each in range(2)] == [number == 0, number == 1]
        assert "1 customer" in text
        export = client.get(f"{CUSTOMERS}export/")
        assert b"".join(export.streaming_content) == f"of-{number}\n".encode()  # type: ignore[attr-defined]
        query = "app_label=salon&model_name=customernote&field_name=customer&term=of"
        found = client.get(f"{STAFF}autocomplete/?{query}").json()["results"]
        assert [each["text"] for each in found] == [f"of-{number}"]
        [[other]] = seen("SELECT id FROM customer WHERE store_id <> %s", store)
        for page in ("change", "history", "delete"):
            assert client.get(f"{CUSTOMERS}{other}/{page}/").status_code in (302, 404)
    choose(client, "")
    assert "none is chosen" in text_of(client.get(CUSTOMERS))
    assert client.get(f"{STAFF}auth/user/").status_code == 200
    assert client.get(STAFF).status_code == 200


def test_change_of_choice_is_logged(two: list[UUID]) -> None:
    client = staff(everything=True)
    for store in (two[0], two[0], two[1], ""):
        choose(client, store)
    chose, left = "Chose to work in it.", "Stopped working in it."
    assert log() == [("Acme", chose), ("Acme", left), ("Beta", chose), ("Beta", left)]
    assert offered(text_of(client.get(f"{STAFF}choose-store/")).split("Last used")[1]) == ["Beta", "Acme"]


@pytest.mark.parametrize("given", ["of others", "that is none", "rubbish"])
def test_forbidden_choice_is_refused(two: list[UUID], given: str) -> None:
    client = staff(two[0])
    store = {"of others": two[1], "that is none": new_store_id()}.get(given, "rubbish")
    assert choose(client, store).status_code == 403
    assert log() == []
    assert "none is chosen" in text_of(client.get(CUSTOMERS))
    assert choose(staff(everything=True), new_store_id()).status_code == 403


def test_choice_ends_with_membership_or_permission(two: list[UUID]) -> None:
    member, everywhere = staff(two[0]), staff(may=("view_all_stores",))
    for client in (member, everywhere):
        choose(client, two[0])
        assert "of-0" in text_of(client.get(CUSTOMERS))
    change("TRUNCATE membership, auth_user_user_permissions")
    change("UPDATE auth_user SET is_superuser = false")
    change(
        "INSERT INTO auth_user_user_permissions (user_id, permission_id) SELECT u.id, p.id FROM auth_user u,"
        " auth_permission p WHERE p.codename = 'view_customer'"
    )
    for client in (member, everywhere):
        assert "none is chosen" in text_of(client.get(CUSTOMERS))


@pytest.fixture
def plain_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have Django look for the memberships of a user to be deleted, as with a ForeignKey of its own."""
    monkeypatch.setattr(Membership._meta.get_field("user").remote_field, "on_delete", models.CASCADE)
    key = "ALTER TABLE membership DROP CONSTRAINT membership_of_user, ADD CONSTRAINT membership_of_user FOREIGN KEY"
    key += " (user_id) REFERENCES auth_user (id) {} DEFERRABLE INITIALLY DEFERRED"
    change(key.format(""))
    yield
    change(key.format("ON DELETE CASCADE"))


@pytest.mark.parametrize("chosen", [True, False])
def test_user_is_deleted_with_memberships(two: list[UUID], chosen: bool) -> None:
    staff(*two)
    [[user]] = seen("SELECT id FROM auth_user")
    client = staff(everything=True)
    if chosen:
        choose(client, two[0])
    answer = client.post(f"{STAFF}auth/user/{user}/delete/", {"post": "yes"}, follow=True)
    assert "was deleted successfully" in text_of(answer)
    assert seen("SELECT FROM membership") == []


@pytest.mark.usefixtures("plain_key")
def test_user_with_rows_of_other_stores_stays(two: list[UUID]) -> None:
    for stores in (two, two[:0]):
        staff(*stores)
    users = [user for [user] in seen("SELECT id FROM auth_user ORDER BY id")]
    client, users_page = staff(everything=True), f"{STAFF}auth/user/"
    for page, sent in (
        (f"{users_page}{users[0]}/delete/", {"post": "yes"}),
        (users_page, {"post": "yes", "action": "delete_selected", "_selected_action": users}),
    ):
        text_of(client.get(page))
        text = text_of(client.post(page, sent, follow=True))
        assert "Rows of other stores refer to this, so it cannot be deleted." in text
        assert "uccessfully" not in text
    assert log() == []
    assert seen("SELECT count(*) FROM auth_user") == [(3,)]
    assert "uccessfully" in text_of(client.post(f"{users_page}{users[1]}/delete/", {"post": "yes"}, follow=True))


def test_deleted_store_is_not_chosen(two: list[UUID]) -> None:
    client = staff(everything=True)
    choose(client, two[1])
    choose(client, two[0])
    change("DELETE FROM customer WHERE store_id = %s", two[0])
    text = text_of(client.post(f"{STAFF}salon/store/{two[0]}/delete/", {"post": "yes"}, follow=True))
    assert "was deleted successfully" in text
    assert "You see one store at a time, and none is chosen." in text
    assert offered(text.split("Last used")[1]) == ["Beta"]


def test_members_find_stores_by_name(two: list[UUID]) -> None:
    client = staff(*two)
    for query, found in (("", ["Acme", "Beta"]), ("?q=ACM", ["Acme"]), (f"?q={two[1]}", ["Beta"]), ("?q=x", [])):
        assert offered(text_of(client.get(f"{STAFF}choose-store/{query}"))) == found
    assert "Beta" not in text_of(staff(two[0]).get(f"{STAFF}choose-store/?q={two[1]}"))


def test_staff_of_all_stores_find_one(two: list[UUID]) -> None:
    client = staff(everything=True)
    assert "no store with this name" in text_of(client.get(f"{STAFF}choose-store/?q=acme"))
    assert ">Acme<" in text_of(client.get(f"{STAFF}choose-store/?q={two[0]}"))
    with operator_reads_names():
        text = text_of(client.get(f"{STAFF}choose-store/?q=acme"))
        assert (">Acme<" in text, ">Beta<" in text) == (True, False)
        with expect_no_rows():
            assert Store.objects.using("operator").filter(name__in=["Acme", "Beta"]).count() == 2
            assert not Store.objects.using("web").exists()
        change("UPDATE store SET name = %s WHERE id = %s", f"After {two[1]}", two[0])
        text = text_of(client.get(f"{STAFF}choose-store/?q={two[1]}"))
        assert re.findall(r'name="store" value="([^"]+)"', text) == [str(two[1]), str(two[0])], "the key comes first"


def test_names_belong_to_store_model_alone() -> None:
    with pytest.raises(Exception, match="for the store model alone"):
        StoreIsolation(field="store", names=["name"], name="x").access(Customer, conf.roles, using="default")


def test_form_fills_store_in(two: list[UUID]) -> None:
    client = staff(everything=True)
    choose(client, two[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.get_model_admin(Customer), "inlines", [NoteInline])
        text = text_of(client.get(f"{CUSTOMERS}add/"))
    assert text.count(f'<option value="{two[1]}" selected>') == 3, "of the row, its first note and one to be added"
    assert str(two[0]) not in text
    row = {"store": str(two[1]), "name": "new", "email": "a@b.example"}
    assert client.post(f"{CUSTOMERS}add/", row).status_code == 302
    assert seen("SELECT store_id FROM customer WHERE name = 'new'") == [(two[1],)]


def test_no_filter_by_store() -> None:
    class Filtered(StoreAdminMixin, admin.ModelAdmin[Any]):
        """Names filters that would list all stores."""

        list_filter = ("store", "customer__store", ("store", admin.RelatedOnlyFieldListFilter), "store__name", "body")

    assert Filtered(CustomerNote, site).get_list_filter(HttpRequest()) == ["body"]


def test_page_made_before_switch_changes_nothing(two: list[UUID]) -> None:
    client = staff(everything=True)
    choose(client, two[0])
    [[customer]] = seen("SELECT id FROM customer WHERE store_id = %s", two[0])
    page = text_of(client.get(f"{NOTES}add/"))
    assert page.count(f'name="salon_jobs_page_store" value="{two[0]}"') == page.count('name="csrfmiddlewaretoken"') > 0
    fields = {"customer": str(customer), "body": "hello", "salon_jobs_page_store": str(two[0])}
    choose(client, two[1])
    text = text_of(client.post(f"{NOTES}add/", fields), 409)
    assert "Nothing was changed: this page was made before you switched to “Beta”." in text
    marked = {"action": "delete_selected", "select_across": "1", "_selected_action": str(customer), "post": "yes"}
    text_of(client.post(CUSTOMERS, {**marked, "salon_jobs_page_store": str(two[0])}), 409)
    assert seen("SELECT count(*) FROM customer") == [(2,)]
    choose(client, two[0])
    assert client.post(f"{NOTES}add/", fields).status_code == 302
    assert seen("SELECT store_id, body FROM customer_note") == [(two[0], "hello")]


def test_added_store_is_chosen(two: list[UUID]) -> None:
    client, key = staff(everything=True), new_store_id()
    assert f'href="{STAFF}salon/store/add/"' in text_of(client.get(f"{STAFF}salon/store/"))
    is_asked = 'name="id"' in text_of(client.get(f"{STAFF}salon/store/add/"))  # not a number that the database gives
    for wrong, says in (("no key!", "errorlist"), (str(two[0]), "already exists")) if is_asked else ():
        assert says in text_of(client.post(f"{STAFF}salon/store/add/", {"id": wrong, "name": "Gamma"}))
    answer = client.post(f"{STAFF}salon/store/add/", {"id": str(key), "name": "Gamma"})
    assert (answer.status_code, answer["Location"]) == (302, f"{STAFF}salon/store/")
    [(made,)] = seen("SELECT id FROM store WHERE name = 'Gamma'")
    assert (made == key) is is_asked
    text = text_of(client.get(f"{STAFF}salon/store/"))
    assert ("Gamma" in text.split("result_list")[1], "Acme" in text.split("result_list")[1]) == (True, False)
    assert log()[-1] == ("Gamma", "Chose to work in it.")


@pytest.fixture
def numbered(two: list[UUID]) -> Iterator[type[models.Model]]:
    """Make stores have numbers as keys: a model whose table has an identity column, and the rights it declares."""

    class Organization(models.Model):
        id = models.BigAutoField(primary_key=True)
        name = models.CharField(max_length=20)

        class Meta:
            app_label = "salon"
            constraints: ClassVar = [StoreIsolation(field="id", name="organization_isolation")]

        def __str__(self) -> str:
            return self.name

    # Its first keys are those of no store in another test, since a process remembers the names of stores.
    identity = f"bigint GENERATED BY DEFAULT AS IDENTITY (START WITH {FIRST_KEY})"
    change(f"CREATE TABLE salon_organization (id {identity} PRIMARY KEY, name text)")
    try:
        wanted = {**SALON_JOBS, "DATABASE": "web", "OPERATOR_DATABASE": None, "STORE_MODEL": "salon.Organization"}
        without = [each for each in MIDDLEWARE if "TenantMiddleware" not in each]
        with override_settings(SALON_JOBS={**wanted, "MEMBERSHIP_MODEL": None}, MIDDLEWARE=without):
            [constraint] = vars(Organization)["_meta"].constraints
            access = constraint.access(Organization, conf.roles, using="owner")
            change(";".join(access.install(conf.roles.runtime)))
            yield Organization
    finally:
        del apps.all_models["salon"]["organization"]
        apps.clear_cache()
        change("DROP TABLE salon_organization")
        of_type = "content_type_id IN (SELECT id FROM django_content_type WHERE model = 'organization')"
        change(f"DELETE FROM django_admin_log WHERE {of_type}")
        change("DELETE FROM django_content_type WHERE model = 'organization'")
        ContentType.objects.clear_cache()


def test_added_store_with_generated_key(numbered: type[models.Model]) -> None:
    own = StoreAdminSite(name="numbered")
    own.register(numbered)
    urls = ModuleType("numbered_urls")
    vars(urls)["urlpatterns"] = [path("admin/", own.urls)]
    client, address = staff(everything=True), f"{STAFF}salon/organization/"
    with override_settings(ROOT_URLCONF=urls):
        assert "You see one organization at a time" in text_of(client.get(address))
        text_of(client.get(f"{address}add/"))
        for number, name in enumerate(("North", "South"), FIRST_KEY):
            assert client.post(f"{address}add/", {"name": name}).status_code == 302
            assert seen("SELECT id FROM salon_organization WHERE name = %s", name) == [(number,)]
            assert f"/{number}/change/" in text_of(client.get(address))
        assert "North" in text_of(client.get(f"{STAFF}choose-store/?q={FIRST_KEY}"))


def test_adding_foreign_store_tells_nothing(two: list[UUID]) -> None:
    client = staff(two[0], may=("add_store", "view_store"))
    is_asked = 'name="id"' in text_of(client.get(f"{STAFF}salon/store/add/"))
    answer = client.post(f"{STAFF}salon/store/add/", {"id": str(two[1]), "name": "Gamma"})
    assert answer.status_code == (403 if is_asked else 302)
    assert seen("SELECT name FROM store WHERE id = %s", two[1]) == [("Beta",)]
    assert b"Beta" not in answer.content


@pytest.mark.parametrize("page", ["", "add/", "{}/change/", "{}/delete/", "{}/history/"])
def test_taken_key_tells_nothing(two: list[UUID], page: str) -> None:
    """Staff who may not add a store do not learn which keys are taken, on whatever page they ask."""
    client = staff(two[0], may=("view_store", "change_store", "delete_store"))
    choose(client, two[0])
    for key in (two[1], new_store_id()):
        fields = {"id": str(key), "name": "Gamma", "_saveasnew": "1"}
        text_of(client.post(f"{STAFF}salon/store/{page.format(two[0])}", fields), 403)
    assert seen("SELECT count(*) FROM store WHERE name = 'Gamma'") == [(0,)]


def test_others_are_sent_to_login(two: list[UUID]) -> None:
    for page in (CUSTOMERS, f"{STAFF}choose-store/"):
        assert Client().get(page)["Location"].startswith(f"{STAFF}login/")


@pytest.mark.process
def test_apps_of_guide() -> None:
    """They put the site and the switcher in place."""
    setup = next(block.text for block in blocks(read(ROOT / "docs/how-to/staff-across-stores.md")))
    program = """
from django.conf import settings
databases = {'default': {'ENGINE': 'django.db.backends.postgresql', 'NAME': 'x'}}
templates = [{'BACKEND': 'django.template.backends.django.DjangoTemplates', 'APP_DIRS': True}]
settings.configure(DATABASES=databases, TEMPLATES=templates, INSTALLED_APPS=[*INSTALLED_APPS, 'pgtrigger'])
import django; django.setup()
from django.contrib import admin
from django.template.loader import get_template
from salon_jobs.models import Job
from salon_jobs.staff import StoreAdminSite
assert isinstance(admin.site, StoreAdminSite) and admin.site.is_registered(Job)
assert 'staff' in get_template('admin/base_site.html').origin.name
"""
    ended = run_command(sys.executable, "-c", f"{setup}\n{program}")
    assert ended.returncode == 0, ended.stderr


def test_mixin_needs_site_with_switcher() -> None:
    with pytest.raises(ImproperlyConfigured, match="its site needs StoreAdminSiteMixin"):
        StoreAdminMixin(Customer, admin.AdminSite()).get_urls()


def test_mixin_is_added_to_isolated_models_alone() -> None:
    own = StoreAdminSite()

    class NamedAdmin(StoreAdminMixin, admin.ModelAdmin[Any]):
        """Names the mixin."""

    own.register(Customer, NamedAdmin, list_display=("name",))
    assert not any(isinstance(each, SystemScope) for each in Customer._meta.constraints)
    assert isinstance(own.get_model_admin(Customer), NamedAdmin)
    assert not isinstance(site.get_model_admin(User), StoreAdminMixin)
    assert isinstance(site.get_model_admin(Customer), CustomerAdmin)
    assert type(site.get_model_admin(Customer)).__name__ == "CustomerAdmin"


def test_view_on_site_finds_rows_of_chosen_store(two: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    """The link of a row's page leads on, in the chosen store alone; without one no row is found."""
    for model in (Customer, Store):
        monkeypatch.setattr(model, "get_absolute_url", lambda row: f"/of/{row.pk}/", raising=False)
    client = staff(*two)
    rows: dict[Any, Any] = dict(seen("SELECT store_id, id FROM customer"))

    def followed(model: Any, key: object) -> tuple[int, str]:
        kind = ContentType.objects.get_for_model(model).pk
        answer = client.get(f"{STAFF}r/{kind}/{key}/")
        return answer.status_code, answer.get("Location", "").partition("/of/")[2]

    for chosen in ("", *two):
        choose(client, chosen)
        for store in two:
            for model, key in ((Customer, rows[store]), (Store, store)):
                assert followed(model, key) == ((302, f"{key}/") if store == chosen else (404, ""))
