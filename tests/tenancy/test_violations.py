"""What row-level security refuses, in plain views and forms: the client's error, not ours."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from django import forms
from django.contrib.auth.models import Group
from django.db import DatabaseError, IntegrityError, ProgrammingError, transaction
from django.http import HttpRequest
from django.test import RequestFactory

from project.salon.models import Customer, CustomerNote
from salon_jobs import current_store_id, tenant_context
from salon_jobs.tenancy import form_errors, violation_of
from tests.docs.markdown import blocks, read
from tests.support import seen
from tests.tenancy.probe import execute, fail
from tests.tenancy.web import both_handlers, does, send, written

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Any]
else:
    ModelForm = forms.ModelForm  # generic only for type checkers
ANOTHER_STORE = "This belongs to another store than the current one."
NO_SUCH_ROW = "This refers to a row of another store, or to none."


def foreign_customer(store: UUID) -> UUID:
    """Return the key of another store's customer, which the owner sees."""
    [[key]] = seen("SELECT id FROM customer WHERE store_id <> %s", store)
    assert isinstance(key, UUID)
    return key


def write_to(store: UUID) -> None:
    Customer.objects.create(store_id=store, name="written", email="")


def note_on(customer: UUID, store: UUID) -> None:
    CustomerNote.objects.create(store_id=store, customer_id=customer, body="!")


@pytest.fixture
def noted(two: list[UUID]) -> Customer:
    """Write a note on the customer of the first store; return that customer."""
    with tenant_context(two[0]):
        [own] = Customer.objects.all()
        note_on(own.pk, two[0])
    return own


@both_handlers
def test_status_of_view(two: list[UUID], noted: Customer, path: str) -> None:
    for work, status in (
        (partial(write_to, two[0]), 200),
        (partial(write_to, two[1]), 403),
        (lambda: Customer.objects.update(store_id=two[1]), 403),
        (partial(note_on, foreign_customer(two[0]), two[0]), 403),
        (partial(note_on, uuid4(), two[0]), 403),
        # What stores have no part in is an error of ours.
        (noted.delete, 500),
        (partial(execute, "TRUNCATE customer"), 500),
        (partial(fail, AttributeError), 500),
    ):
        assert send(two[0], path, does(work)).status_code == status
    assert (written(), seen("SELECT count(*) FROM customer_note")) == (1, [(1,)])


def test_violation_is_validation_error_of_field(two: list[UUID], noted: Customer) -> None:
    own, other = two
    for kind, work, messages in (
        (ProgrammingError, partial(write_to, other), {"store": [ANOTHER_STORE]}),
        (IntegrityError, partial(note_on, foreign_customer(own), own), {"customer": [NO_SUCH_ROW]}),
        (IntegrityError, noted.delete, None),
        (ProgrammingError, partial(execute, "TRUNCATE customer"), None),
        (IntegrityError, partial(Customer.objects.create, id=noted.pk, store_id=own, name="", email=""), None),
        (IntegrityError, partial(Group.objects.create, name=None), None),
    ):
        with pytest.raises(DatabaseError) as raised, tenant_context(own):
            work()
        assert type(raised.value) is kind
        violation = violation_of(raised.value)
        assert (violation and violation.message_dict) == messages
    assert violation_of(KeyError()) is None


class NoteForm(forms.Form):
    customer = forms.UUIDField()
    body = forms.CharField()


class CustomerForm(ModelForm):
    class Meta:
        model = Customer
        fields = ("name", "email")


def test_form_has_error_at_its_field(two: list[UUID]) -> None:
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


def test_form_without_field_has_error_as_a_whole(two: list[UUID]) -> None:
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
    customer_id = forms.UUIDField()

    class Meta:
        model = CustomerNote
        fields = ("body",)

    def save(self, commit: bool = True) -> Any:
        note: Any = self.instance
        note.store_id = current_store_id()
        note.customer_id = self.cleaned_data["customer_id"]
        return super().save(commit)


def test_view_of_guide_shows_form_again(two: list[UUID]) -> None:
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
