"""Resolvers that find the store of a request, and the stores a user belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast, runtime_checkable

from django.apps import apps
from django.contrib.auth import get_user_model
from django.contrib.sessions.backends.base import SessionBase
from django.db import connections
from django.db.models import Field, Model
from django.http import HttpRequest
from django.http.request import split_domain_port
from django.utils.module_loading import import_string
from psycopg import sql

from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.errors import ConfigurationError, StoreRefused
from salon_jobs.core.records import StoreId
from salon_jobs.db.connections import in_transaction
from salon_jobs.db.libpq import converted
from salon_jobs.db.statements import in_one_trip

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser


def stores_of(user: AbstractBaseUser | AnonymousUser) -> tuple[StoreId, ...]:
    """Return the stores to which a user belongs, ordered by id; none for a user who is not signed in.

    One round trip. With row-level security it reads as the user: ``user_guc`` holds the user's key for this one
    statement, and the policy of ``MembershipIsolation`` shows that user's memberships. Raises ConfigurationError if
    ``MEMBERSHIP_MODEL`` is unusable, and Django's database errors.
    """
    if not user.is_authenticated:
        return ()
    model, user_field, store_field = membership_fields()
    target: Any = getattr(user_field, "target_field", None)  # of a foreign key: usually, not always, the user's key
    key = str(user.pk if target is None else getattr(user, target.attname))
    connection = connections[conf.database]
    if not connection.in_atomic_block:
        connection.close_if_health_check_failed()
    connection.ensure_connection()
    # Two statements in one message are one transaction, and the setting ends with it.
    statement = sql.SQL("SELECT set_config({}, {}, true); SELECT {} FROM {} WHERE {} = {} ORDER BY 1").format(
        sql.Literal(conf.user_guc),
        sql.Literal(key),
        sql.Identifier(str(store_field.column)),
        sql.Identifier(model._meta.db_table),
        sql.Identifier(str(user_field.column)),
        sql.Literal(key),
    )
    rows = converted(connection.connection, in_one_trip(connection, statement.as_string(connection.connection)))
    if in_transaction(connection):  # other code's, which continues
        forget = sql.SQL("SELECT set_config({}, '', true)").format(sql.Literal(conf.user_guc))
        in_one_trip(connection, forget.as_string(connection.connection))
    return tuple(store for (store,) in rows)


def membership_fields() -> tuple[type[Model], Field[Any, Any], Field[Any, Any]]:
    """Return the membership model and its user and store fields. Raises ConfigurationError naming the key."""
    if conf.membership_model is None:
        raise ConfigurationError(
            "SALON_JOBS['MEMBERSHIP_MODEL'] is not set: name the model that says which user belongs to which store"
        )
    try:
        model = apps.get_model(conf.membership_model)
    except LookupError:
        name = conf.membership_model
        raise ConfigurationError(f"SALON_JOBS['MEMBERSHIP_MODEL'] {name!r} is not an installed model") from None
    return model, _field(model, "user", get_user_model()._meta.label), _field(model, "store", conf.store_model)


def _field(model: type[Model], name: str, target: str | None) -> Field[Any, Any]:
    """Return the field with this name, or else the only foreign key to the target. Raises ConfigurationError."""
    columns = model._meta.concrete_fields
    named = [field for field in columns if field.name == name]
    fitting = named or [
        field for field in columns if field.related_model and cast("Any", field.related_model)._meta.label == target
    ]
    if len(fitting) != 1:
        raise ConfigurationError(
            f"SALON_JOBS['MEMBERSHIP_MODEL']: {model._meta.label} has no field {name!r}, and not exactly one foreign "
            f"key to {target}"
        )
    return fitting[0]


@runtime_checkable
class StoreResolver(Protocol):
    """Object that finds the store of a request and decides whether its user may access it.

    Created once per process, without arguments. Both methods run in a thread, before the request's transaction, without
    a store on the connection.
    """

    def resolve(self, request: HttpRequest) -> StoreId | None:
        """Return the store, or None if the request has none. Raises StoreRefused for an invalid value."""
        ...

    def allowed(self, request: HttpRequest, store: StoreId) -> bool:
        """Return whether the user belongs to the store that ``resolve`` returned; otherwise the response is a 403.

        A store that does not exist must look like someone else's.
        """
        ...


def make_resolver() -> StoreResolver:
    """Create the resolver named by ``REQUEST_STORE``. Raises ConfigurationError."""
    name = conf.request_resolver
    if name in _RESOLVERS:
        membership_fields()
        return _RESOLVERS[name]()
    try:
        resolver: object = import_string(name)()
    except (ImportError, TypeError) as error:
        raise ConfigurationError(f"SALON_JOBS['REQUEST_STORE'] {name!r} cannot be created: {error}") from error
    if not isinstance(resolver, StoreResolver):
        raise ConfigurationError(f"SALON_JOBS['REQUEST_STORE'] {name!r} needs the methods resolve and allowed")
    return resolver


class OfMembers:
    """Base that allows the stores of the signed-in user. ``vary``: the headers on which the response depends."""

    vary: ClassVar[tuple[str, ...]] = ()

    def allowed(self, request: HttpRequest, store: StoreId) -> bool:
        """Return whether the user is a member of the store."""
        return store in memberships(request)

    def follows_session(self, request: HttpRequest) -> bool:
        """Return whether the same request finds another store once the user has switched."""
        return False


class HeaderResolver(OfMembers):
    """Resolver that reads the store from the header ``REQUEST_HEADER``."""

    @property
    def vary(self) -> tuple[str, ...]:  # type: ignore[override]
        """Headers that keep caches from serving one store's response to another."""
        return (conf.request_header,)

    def resolve(self, request: HttpRequest) -> StoreId | None:
        value = request.headers.get(conf.request_header)
        return None if value is None else _as_store(value, f"the header {conf.request_header}")


class SessionResolver(OfMembers):
    """Resolver that reads the store from the session, under ``REQUEST_SESSION_KEY``."""

    def resolve(self, request: HttpRequest) -> StoreId | None:
        session: SessionBase | None = getattr(request, "session", None)  # an API may have none
        value = None if session is None else session.get(conf.request_session_key)
        return None if value is None else _as_store(str(value), f"the session's {conf.request_session_key}")

    def follows_session(self, request: HttpRequest) -> bool:
        return any(len(stores) > 1 for stores in _known_memberships(request).values())


class SubdomainResolver(OfMembers):
    """Resolver that takes the store's key from the subdomain of the domain that ``REQUEST_STORE`` names after "*.".

    In a subclass, set ``domain``, and override ``store_of`` for other names.
    """

    domain: str | None = None

    def resolve(self, request: HttpRequest) -> StoreId | None:
        """Return the store named by the subdomain; None for the domain itself and for other hosts."""
        host, _port = split_domain_port(request.get_host())
        name, dot, domain = host.partition(".")
        return self.store_of(name) if dot and domain == (self.domain or conf.store_domain) else None

    def store_of(self, name: str) -> StoreId | None:
        return _as_store(name, "the subdomain")


class MembershipResolver(HeaderResolver):
    """Resolver for the only store of the signed-in user; for a user of several, the one named by header or session."""

    def resolve(self, request: HttpRequest) -> StoreId | None:
        """Return the named store, or the only one; None for a user of several who names none."""
        if (named := super().resolve(request) or SessionResolver().resolve(request)) is not None:
            return named
        stores = memberships(request)
        return stores[0] if len(stores) == 1 else None

    def follows_session(self, request: HttpRequest) -> bool:
        return conf.request_header not in request.headers and SessionResolver().follows_session(request)


_RESOLVERS: Final[dict[str, type[StoreResolver]]] = {
    "membership": MembershipResolver,
    "header": HeaderResolver,
    "session": SessionResolver,
    "subdomain": SubdomainResolver,
}


def memberships(request: HttpRequest) -> tuple[StoreId, ...]:
    """Return the user's stores, read once per request and user: a view may sign in another one than the session."""
    known = _known_memberships(request)
    if request.user.pk not in known:
        known[request.user.pk] = stores_of(request.user)
    return known[request.user.pk]


def _known_memberships(request: HttpRequest) -> dict[Any, tuple[StoreId, ...]]:
    known: dict[Any, tuple[StoreId, ...]] = request.__dict__.setdefault("_salon_jobs_stores", {})
    return known


def _as_store(value: str, source: str) -> StoreId:
    try:
        return store_key().parse(value)
    except ValueError as error:
        raise StoreRefused(f"{source} {error}, the key of a store", status=400) from None
