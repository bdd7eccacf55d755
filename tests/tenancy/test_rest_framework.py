"""Views of Django REST framework as the store of whom they authenticate, as the web role and in strict mode."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.http import Http404, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.authentication import BasicAuthentication, SessionAuthentication, TokenAuthentication
from rest_framework.exceptions import APIException
from rest_framework.permissions import AllowAny, BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.serializers import HiddenField, ModelSerializer, UUIDField
from rest_framework.views import APIView
from rest_framework.viewsets import ModelViewSet

from project.salon.models import Customer, CustomerNote, OperatorInvitation
from salon_jobs import current_store_id, tenant_context
from salon_jobs.access.strict import refuse_without_store
from salon_jobs.integrations.rest_framework import CurrentStore, StoreField, TenantAPIView
from tests.docs.markdown import blocks, read
from tests.support import new_store_id, seen
from tests.tenancy.probe import fail
from tests.tenancy.web import canaries, configured, expected, member_of, signed_in, write, written

with_and_without_atomic_requests = pytest.mark.parametrize("atomic_requests", [False, True])


class ByKey(TokenAuthentication):
    """Authentication by a token that is the user's key."""

    def authenticate_credentials(self, key: str) -> tuple[User, str]:
        return User.objects.get(pk=key), key


class SeesItsStore(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        return Customer.objects.count() == 1


class View(TenantAPIView):
    authentication_classes: ClassVar = [ByKey, BasicAuthentication, SessionAuthentication]
    permission_classes: ClassVar[list[type]] = [IsAuthenticated]


class Free(View):
    permission_classes: ClassVar[list[type]] = [AllowAny]

    def get(self, request: Request) -> Response:
        return Response({"store": current_store_id(), "seen": canaries()})


class Look(Free):
    permission_classes: ClassVar[list[type]] = [IsAuthenticated, SeesItsStore]


class Hook(View):
    """View that does what a test says."""

    does: ClassVar[Any]

    def post(self, request: Request) -> HttpResponseBase:
        answer: HttpResponseBase = type(self).does()
        return answer


@method_decorator(transaction.non_atomic_requests, name="dispatch")
class HookWithoutTransaction(Hook):
    pass


class CustomerSerializer(ModelSerializer):
    class Meta:
        model = Customer
        fields: ClassVar = ["id", "store", "name", "email"]


class NoteSerializer(ModelSerializer):
    store = HiddenField(default=CurrentStore())

    class Meta:
        model = CustomerNote
        fields: ClassVar = ["id", "store", "customer", "body"]


class RawNoteSerializer(NoteSerializer):
    customer_id = UUIDField()

    class Meta(NoteSerializer.Meta):
        fields: ClassVar = ["id", "store", "customer_id", "body"]


class InvitationSerializer(ModelSerializer):
    store = HiddenField(default=CurrentStore())

    class Meta:
        model = OperatorInvitation
        fields: ClassVar = ["store", "email", "token", "expires_at"]


class OldCustomerSerializer(CustomerSerializer):
    store = StoreField()


class OldInvitationSerializer(ModelSerializer):
    store = StoreField()

    class Meta(InvitationSerializer.Meta):
        pass


class Customers(View, ModelViewSet):
    queryset = Customer.objects.order_by("name")
    serializer_class = CustomerSerializer


class Notes(View, ModelViewSet):
    queryset = CustomerNote.objects.all()
    serializer_class = NoteSerializer


class RawNotes(Notes):
    serializer_class = RawNoteSerializer


class Invitations(View, ModelViewSet):
    queryset = OperatorInvitation.objects.all()
    serializer_class = InvitationSerializer


class OldCustomers(Customers):
    serializer_class = OldCustomerSerializer


class OldInvitations(View, ModelViewSet):
    queryset = OperatorInvitation.objects.all()
    serializer_class = OldInvitationSerializer


router = SimpleRouter()
for viewset in (Customers, OldCustomers, OldInvitations, Notes, RawNotes, Invitations):
    router.register(viewset.__name__.lower(), viewset, viewset.__name__.lower())
urlpatterns = [
    path("look/", Look.as_view()),
    path("hook/", Hook.as_view()),
    path("hook-without-transaction/", HookWithoutTransaction.as_view()),
    path("free/", Free.as_view()),
    *router.urls,
]


@pytest.fixture
def api(two: list[UUID], settings: Any) -> Iterator[list[UUID]]:
    """Serve the API in strict mode."""
    settings.ROOT_URLCONF = __name__
    refuse_without_store(connection)
    yield two
    connection.execute_wrappers.clear()


def token(*stores: UUID) -> dict[str, str]:
    """Return the header that authenticates a member of stores inside of the view."""
    return {"Authorization": f"Token {member_of(*stores).pk}"}


def client_of(*stores: UUID, **headers: str) -> Client:
    return Client(raise_request_exception=False, headers={**token(*stores), **headers})


def customers() -> list[UUID]:
    """Return the keys of the canaries of both stores, which the owner sees."""
    rows = [key for (key,) in seen("SELECT id FROM customer ORDER BY store_id")]
    assert len(rows) == 2
    return rows


def test_view_runs_in_store_of_authenticated_user(api: list[UUID]) -> None:
    """The user of the view counts, not the one of the session."""
    for number in (0, 1, 0):
        store, other = api[number], api[1 - number]
        for response in (
            client_of(store).get("/look/"),
            signed_in(member_of(store)).get("/look/"),
            signed_in(member_of(other)).get("/look/", headers=token(store)),
            async_to_sync(AsyncClient().get)("/look/", headers=token(store)),
        ):
            assert (response.status_code, response.json()) == (200, expected(api, number))
            assert (current_store_id(), connection.in_atomic_block) == (None, False)
    named = client_of(*api).get("/look/", headers={"X-Store-Id": str(api[1])})
    assert named.json() == expected(api, 1)
    assert "X-Store-Id" in named["Vary"]


@pytest.mark.parametrize("path", ["/look/", "/free/"])
def test_request_without_store_is_refused(api: list[UUID], path: str) -> None:
    nobody = Client().get(path)
    assert (nobody.status_code, nobody["WWW-Authenticate"]) == (401, "Token")
    for client, headers in ((client_of(), {}), (client_of(api[0]), {"X-Store-Id": str(api[1])})):
        assert client.get(path, headers=headers).status_code == 403
    foreign, missing = (client_of(api[0]).get(path, headers={"X-Store-Id": str(id)}) for id in (api[1], new_store_id()))
    assert foreign.json() == missing.json() == {"detail": "you do not belong to this store"}
    assert client_of(api[0]).get(path, headers={"X-Store-Id": "x" * 10_000}).status_code == 400


@pytest.mark.parametrize("header", ["X-Store-Id", "X-Organization"])
def test_client_with_token_learns_header(api: list[UUID], header: str) -> None:
    """Of several stores; who belongs to none learns that, and nobody needs a header to sign in."""
    several, none = client_of(*api), client_of()
    for resolver in ("membership", "header"):
        with configured(REQUEST_STORE=resolver, REQUEST_HEADER=header), override_settings(ROOT_URLCONF=__name__):
            said = several.get("/look/").json()["detail"]
            assert said == f"no store is chosen: name one of yours in the header {header}, by its key"
            assert several.get("/look/", headers={header: str(api[1])}).json() == expected(api, 1)
            assert none.get("/look/").json() == {"detail": "you belong to no store"}
            assert "header" not in Client().get("/look/").json()["detail"]
    with configured(REQUEST_STORE="session"), override_settings(ROOT_URLCONF=__name__):
        assert several.get("/look/").json()["detail"] == "no store is chosen: sign in, or choose one of yours"


def test_request_without_store_continues(api: list[UUID]) -> None:
    connection.execute_wrappers.clear()
    with configured(REQUEST_WITHOUT_STORE="continue"), override_settings(ROOT_URLCONF=__name__):
        assert Client().get("/free/").json() == {"store": None, "seen": []}


def test_foreign_row_is_not_found(api: list[UUID]) -> None:
    own, others = customers()
    client = client_of(api[0])
    assert [row["id"] for row in client.get("/customers/").json()] == [str(own)]
    assert client.get(f"/customers/{own}/").status_code == 200
    for send in (client.get, client.delete):
        assert send(f"/customers/{others}/").status_code == 404
    assert customers() == [own, others]


def test_foreign_key_in_data_is_error_of_field(api: list[UUID]) -> None:
    _own, others = customers()
    client = client_of(api[0])
    # Not among the choices of the serializer, whose query sees only the own store.
    note = {"customer": str(others), "body": "!"}
    foreign = client.post("/notes/", note)
    missing = client.post("/notes/", {**note, "customer": str(uuid4())})
    assert foreign.status_code == missing.status_code == 400
    assert list(foreign.json()) == list(missing.json()) == ["customer"]
    store = client.post("/customers/", {"store": str(api[1]), "name": "x", "email": "x@example.com"})
    assert (store.status_code, list(store.json())) == (400, ["store"])


@with_and_without_atomic_requests
def test_refusal_of_database_is_error_of_field(api: list[UUID], atomic_requests: bool) -> None:
    connection.settings_dict["ATOMIC_REQUESTS"] = atomic_requests
    _own, others = customers()
    client = client_of(api[0])
    # The reference is checked at COMMIT, when the response is ready.
    for key in (others, uuid4()):
        answer = client.post("/rawnotes/", {"customer_id": str(key), "body": "!"})
        said = {"customer": ["This refers to a row of another store, or to none."]}
        assert (answer.status_code, answer.json()) == (400, said)
    Hook.does = lambda: Response(Customer.objects.create(store_id=api[1], name="x", email="").pk)
    answer = client.post("/hook/")
    said = {"store": ["This belongs to another store than the current one."]}
    assert (answer.status_code, answer.json()) == (400, said)
    assert seen("SELECT count(*) FROM customer_note") == [(0,)]
    assert len(customers()) == 2


def test_duplicate_of_another_store_is_free(api: list[UUID]) -> None:
    invitation = {"email": "a@example.com", "token": "taken", "expires_at": "2030-01-01T00:00:00Z"}
    assert client_of(api[1]).post("/invitations/", invitation).status_code == 201
    client = client_of(api[0])
    taken = client.post("/invitations/", invitation)
    free = client.post("/invitations/", {**invitation, "token": "free"})
    assert (taken.status_code, free.status_code) == (201, 201)
    assert {**taken.json(), "token": "free"} == free.json()
    own = client.post("/invitations/", invitation)
    said = {"non_field_errors": ["The fields store, token must make a unique set."]}
    assert (own.status_code, own.json()) == (400, said)


def test_old_api_keeps_its_store(api: list[UUID]) -> None:
    """It is shown; what a client sends in it is ignored, and new rows get the store of the request."""
    own, others = customers()
    client = client_of(api[0])
    row = {"name": "x", "email": "x@example.com"}
    for data in (row, {**row, "store": str(api[1])}, {**row, "store": "rubbish"}):
        created = client.post("/oldcustomers/", data)
        assert (created.status_code, created.json()["store"]) == (201, str(api[0]))
        path = f"/oldcustomers/{created.json()['id']}/"
        for send in (client.put, client.patch):
            changed = send(path, {**data, "id": created.json()["id"]}, content_type="application/json")
            assert (changed.status_code, changed.json()) == (200, created.json())
    assert {each["store"] for each in client.get("/oldcustomers/").json()} == {str(api[0])}
    assert seen("SELECT store_id, count(*) FROM customer GROUP BY 1 ORDER BY 2") == [(api[1], 1), (api[0], 4)]
    page = client_of(api[0], Accept="text/html").get(f"/oldcustomers/{own}/").content.decode()
    assert str(api[1]) not in page
    assert client.get(f"/oldcustomers/{others}/").status_code == 404


def test_old_api_knows_what_must_be_unique(api: list[UUID]) -> None:
    invitation = {"email": "a@example.com", "token": "taken", "expires_at": "2030-01-01T00:00:00Z"}
    for store in api:
        assert client_of(store).post("/oldinvitations/", invitation).status_code == 201
    again = client_of(api[0]).post("/oldinvitations/", {**invitation, "store": str(api[1])})
    said = {"non_field_errors": ["The fields store, token must make a unique set."]}
    assert (again.status_code, again.json()) == (400, said)


def test_descriptions_of_api_are_its_own() -> None:
    """What makes them takes a docstring from bases: of a view, of its methods, and of a serializer's field."""
    for made in (Customers, Free, OldCustomerSerializer().fields["store"].__class__):
        ours = [base for base in made.__mro__ if base.__module__.startswith("salon_jobs.")]
        assert ours
        assert [base.__doc__ for base in ours if base.__doc__] == []
    for method in ("get", "post", "put", "patch", "delete", "list", "create", "retrieve", "update", "destroy"):
        assert method not in vars(TenantAPIView)


@with_and_without_atomic_requests
@pytest.mark.parametrize(
    ("end", "status", "rows"),
    [
        (partial(Response, status=200), 200, 1),
        (partial(Response, status=400), 400, 1),
        (partial(Response, status=503), 503, 0),
        (partial(fail, Http404), 404, 0),
        (partial(fail, APIException), 500, 0),
        (partial(fail, KeyError), 500, 0),
    ],
)
def test_transaction_of_view(api: list[UUID], end: Any, status: int, rows: int, atomic_requests: bool) -> None:
    def write_and_end() -> Any:
        write()
        return end()

    connection.settings_dict["ATOMIC_REQUESTS"] = atomic_requests
    Hook.does = write_and_end
    assert client_of(api[0]).post("/hook/").status_code == status
    assert written() == rows
    assert not connection.in_atomic_block


def test_unanswered_exception_leaves_no_transaction(api: list[UUID]) -> None:
    Hook.does = partial(fail, KeyError)
    with pytest.raises(KeyError):
        Hook.as_view()(RequestFactory().post("/hook/", headers=token(api[0])))
    assert (current_store_id(), connection.in_atomic_block) == (None, False)


def test_transaction_of_test_case_goes_on(api: list[UUID]) -> None:
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    client = client_of(api[0])
    with transaction.atomic():
        Hook.does = partial(fail, Http404)
        assert client.post("/hook/").status_code == 404
        with tenant_context(api[0]):
            assert canaries() == ["canary 0"]


def test_non_atomic_dispatch(api: list[UUID]) -> None:
    def look_without_transaction() -> Response:
        assert not connection.in_atomic_block
        with transaction.atomic():
            return Response(canaries())

    HookWithoutTransaction.does = look_without_transaction
    assert client_of(api[0]).post("/hook-without-transaction/").json() == ["canary 0"]


def test_streamed_body_is_made_in_store(api: list[UUID]) -> None:
    def body() -> Iterator[str]:
        yield from canaries()
        write()

    Hook.does = lambda: StreamingHttpResponse(body())
    headers = token(api[1])
    assert b"".join(Client().post("/hook/", headers=headers)) == b"canary 1"
    assert written() == 1

    async def send() -> bytes:
        response: Any = await AsyncClient().post("/hook/", headers=headers)
        return b"".join([part async for part in response])

    with pytest.warns(Warning, match="synchronous iterators"):
        assert async_to_sync(send)() == b"canary 1written"
    assert written() == 2


@with_and_without_atomic_requests
def test_browsable_api_offers_own_rows(api: list[UUID], atomic_requests: bool) -> None:
    connection.settings_dict["ATOMIC_REQUESTS"] = atomic_requests
    client = client_of(api[0], Accept="text/html")
    for page in (client.get("/notes/"), client.post("/notes/", {"customer": str(uuid4())})):
        text = page.content.decode()
        assert "canary 0" in text
        assert "canary 1" not in text
        assert str(api[1]) not in text
    refused = client.get("/notes/", headers={"X-Store-Id": str(api[1])})
    assert refused.status_code == 403
    assert "canary" not in refused.content.decode()


def test_viewset_of_guide_adds_rows_to_own_store(api: list[UUID]) -> None:
    [block] = [block for block in blocks(read("docs/how-to/django-rest-framework.md")) if block.action]
    names: dict[str, Any] = {"__name__": "guide"}
    exec(block.text.replace("salon.models", "project.salon.models"), names)
    viewset = names["CustomerViewSet"]
    viewset.authentication_classes = [ByKey]
    view = viewset.as_view({"get": "list", "post": "create"})
    row = {"name": "written", "email": "x@example.com"}
    headers = token(api[1])
    for data in (row, {**row, "store": str(api[0])}):
        assert view(RequestFactory().post("/", data, headers=headers)).status_code == 201
    assert seen("SELECT DISTINCT store_id FROM customer WHERE name = 'written'") == [(api[1],)]
    listed = view(RequestFactory().get("/", headers=headers))
    assert [each["name"] for each in listed.data] == ["canary 1", "written", "written"]
    assert len(names["urlpatterns"]) == 2
