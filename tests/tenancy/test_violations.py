"""What row-level security refuses, in plain views and forms: the client's error, not ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from django import forms
from django.contrib.auth.models import Group
from django.db import DatabaseError, IntegrityError, ProgrammingError, connection, transaction
from django.forms import CharField, Form, UUIDField
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from project.salon.models import Customer, CustomerNote
from salon_jobs import current_store_id, tenant_context
from salon_jobs.tenancy import form_errors, violation_of
from tests.docs.markdown import blocks, read
from tests.support import seen
from tests.tenancy.web import send, written

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Any]
else:
    ModelForm = forms.ModelForm  # generic only for type checkers
ANOTHER_STORE = "This belongs to another store than the current one."
NO_SUCH_ROW = "This refers to a row of another store, or to none."
both_handlers = pytest.mark.parametrize("path", ["/hooked/", "/ahooked/"])


def foreign_customer(store: UUID) -> UUID:
    """Return the key of another store's customer, which the owner sees."""
    [[key]] = seen("SELECT id FROM customer WHERE store_id <> %s", store)
    assert isinstance(key, UUID)
    return key


def write_to(store: UUID) -> None:
    Customer.objects.create(store_id=store, name="written", email="")


def note_on(customer: UUID, store: UUID) -> None:
    CustomerNote.objects.create(store_id=store, customer_id=customer, body="!")


def does(work: Callable[..., object], *arguments: Any) -> Callable[[Any], HttpResponse]:
    return lambda _: HttpResponse(str(work(*arguments)))


@both_handlers
def test_a_view_that_writes_for_another_store_answers_403(two: list[UUID], path: str) -> None:
    assert send(two[0], path, does(write_to, two[0])).status_code == 200
    assert send(two[0], path, does(write_to, two[1])).status_code == 403
    move = does(lambda: Customer.objects.update(store_id=two[1]))
    assert send(two[0], path, move).status_code == 403
    assert written() == 1


@both_handlers
def test_so_does_one_that_refers_to_a_row_of_another_store(two: list[UUID], path: str) -> None:
    for key in (foreign_customer(two[0]), uuid4()):
        assert send(two[0], path, does(note_on, key, two[0])).status_code == 403
    assert seen("SELECT count(*) FROM customer_note") == [(0,)]


@both_handlers
def test_what_stores_have_no_part_in_is_an_error_of_ours(two: list[UUID], path: str) -> None:
    with tenant_context(two[0]):
        [own] = Customer.objects.all()
        note_on(own.pk, two[0])
    for fails in (own.delete, lambda: connection.cursor().execute("TRUNCATE customer"), lambda: uuid4().missing):  # type: ignore[attr-defined]
        assert send(two[0], path, does(fails)).status_code == 500


def error_of(store: UUID, work: Callable[..., object], *arguments: Any) -> DatabaseError:
    with pytest.raises(DatabaseError) as raised, tenant_context(store):
        work(*arguments)
    return raised.value


def test_it_is_the_validation_error_of_full_clean(two: list[UUID]) -> None:
    own, other = two
    foreign = foreign_customer(own)
    for work, arguments, field, text in (
        (write_to, (other,), "store", ANOTHER_STORE),
        (note_on, (foreign, own), "customer", NO_SUCH_ROW),
    ):
        violation = violation_of(error_of(own, work, *arguments))
        assert violation is not None
        assert violation.message_dict == {field: [text]}


def test_and_nothing_for_any_other_error(two: list[UUID]) -> None:
    with tenant_context(two[0]):
        [own] = Customer.objects.all()
        note_on(key := own.pk, two[0])
    others: list[tuple[type[DatabaseError], Callable[[], object]]] = [
        (IntegrityError, own.delete),
        (ProgrammingError, lambda: connection.cursor().execute("TRUNCATE customer")),
        (IntegrityError, lambda: Customer.objects.create(id=key, store_id=two[0], name="", email="")),
        (IntegrityError, lambda: Group.objects.create(name=None)),  # type: ignore[misc]
    ]
    for kind, work in others:
        error = error_of(two[0], work)
        assert type(error) is kind
        assert violation_of(error) is None
    assert violation_of(KeyError()) is None


class NoteForm(Form):
    customer = UUIDField()
    body = CharField()


class CustomerForm(ModelForm):
    class Meta:
        model = Customer
        fields = ("name", "email")


def test_a_form_has_the_error_at_its_field(two: list[UUID]) -> None:
    with tenant_context(two[0]):
        for key, errors in ((foreign_customer(two[0]), {"customer": [NO_SUCH_ROW]}), (Customer.objects.get().pk, {})):
            form = NoteForm({"customer": str(key), "body": "!"})
            assert form.is_valid()
            with form_errors(form):
                note_on(form.cleaned_data["customer"], two[0])
            assert form.errors == errors
            assert form.is_valid() is not bool(errors)
        assert CustomerNote.objects.count() == 1
    assert seen("SELECT count(*) FROM customer_note") == [(1,)]


def test_or_as_a_whole_where_the_field_is_not_in_it(two: list[UUID]) -> None:
    with tenant_context(two[0]):
        form = CustomerForm({"name": "written", "email": "x@example.com"}, instance=Customer(store_id=two[1]))
        assert form.is_valid()
        with form_errors(form):
            form.save()
        assert form.errors == {"__all__": [ANOTHER_STORE]}
        with pytest.raises(IntegrityError), transaction.atomic(), form_errors(form):
            Group.objects.create(name=None)  # type: ignore[misc]
        assert Customer.objects.count() == 1
    assert written() == 0


class AddNoteForm(ModelForm):
    customer_id = UUIDField()

    class Meta:
        model = CustomerNote
        fields = ("body",)

    def save(self, commit: bool = True) -> Any:
        note: Any = self.instance
        note.store_id = current_store_id()
        note.customer_id = self.cleaned_data["customer_id"]
        return super().save(commit)


def test_the_view_of_the_guide_shows_the_form_again(two: list[UUID]) -> None:
    [block] = [each for each in blocks(read("docs/how-to/tenant-middleware.md")) if "class AddNote" in each.text]
    names: dict[str, Any] = {}
    exec(block.text, names)
    view = names["AddNote"].as_view(form_class=AddNoteForm, success_url="/", template_name="note.html")

    def post(customer: UUID) -> Any:
        request: HttpRequest = RequestFactory().post("/", {"customer_id": str(customer), "body": "!"})
        return view(request)

    with tenant_context(two[0]):
        shown = post(foreign_customer(two[0]))
        assert (shown.status_code, shown.context_data["form"].errors) == (200, {"__all__": [NO_SUCH_ROW]})
        assert post(Customer.objects.get().pk).status_code == 302
    assert seen("SELECT count(*) FROM customer_note") == [(1,)]
