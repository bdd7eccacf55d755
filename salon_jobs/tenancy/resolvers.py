"""Finds the store of a request: by the user's membership, a header, the session, the subdomain, or a class of yours."""

from __future__ import annotations

from typing import ClassVar, Final, Protocol, runtime_checkable
from uuid import UUID

from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest
from django.http.request import split_domain_port
from django.utils.module_loading import import_string

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError, StoreRefused
from salon_jobs.tenancy.memberships import membership_fields, stores_of


@runtime_checkable
class StoreResolver(Protocol):
    """Finds the store of a request and says whether its user may have it. Made once a process, without arguments.

    Both run in a thread, before the request's transaction, with no store on the connection.
    """

    def resolve(self, request: HttpRequest) -> UUID | None:
        """Return the store; None when the request has none. Raises StoreRefused for what can be no store."""
        ...

    def allowed(self, request: HttpRequest, store: UUID) -> bool:
        """Tell whether the user belongs to the store that ``resolve`` returned; otherwise the answer is 403.

        A store that does not exist must look like one of somebody else.
        """
        ...


def make_resolver() -> StoreResolver:
    """Make the resolver that ``REQUEST_STORE`` names. Raises ConfigurationError."""
    name = conf.request_store
    if name in _RESOLVERS:
        membership_fields()
        return _RESOLVERS[name]()
    try:
        resolver: object = import_string(name)()
    except (ImportError, TypeError) as error:
        raise ConfigurationError(f"SALON_JOBS['REQUEST_STORE'] {name!r} can not be made: {error}") from error
    if not isinstance(resolver, StoreResolver):
        raise ConfigurationError(f"SALON_JOBS['REQUEST_STORE'] {name!r} needs the methods resolve and allowed")
    return resolver


class _OfMembers:
    """Allows the stores that the signed-in user belongs to. ``vary``: the headers that the answer depends on."""

    vary: ClassVar[tuple[str, ...]] = ()

    def allowed(self, request: HttpRequest, store: UUID) -> bool:
        """Tell whether the user is a member of the store."""
        return store in _memberships(request)


class HeaderResolver(_OfMembers):
    """Takes the store from the header ``STORE_HEADER``."""

    @property
    def vary(self) -> tuple[str, ...]:  # type: ignore[override]
        """Keep caches from giving one store's answer to another."""
        return (conf.store_header,)

    def resolve(self, request: HttpRequest) -> UUID | None:
        """Return what the header says."""
        value = request.headers.get(conf.store_header)
        return None if value is None else _as_store(value, f"the header {conf.store_header}")


class SessionResolver(_OfMembers):
    """Takes the store from the session, under ``STORE_SESSION_KEY``."""

    def resolve(self, request: HttpRequest) -> UUID | None:
        """Return what the session says."""
        session: SessionBase | None = getattr(request, "session", None)  # an API may have none
        value = None if session is None else session.get(conf.store_session_key)
        return None if value is None else _as_store(str(value), f"the session's {conf.store_session_key}")


class SubdomainResolver(_OfMembers):
    """Takes the store from the name before ``STORE_DOMAIN``, as its uuid; override ``store_of`` for other names."""

    def resolve(self, request: HttpRequest) -> UUID | None:
        """Return the store whose name stands before the domain; None for the domain itself and for other hosts."""
        host, _port = split_domain_port(request.get_host())
        name, dot, domain = host.partition(".")
        return self.store_of(name) if dot and domain == conf.store_domain else None

    def store_of(self, name: str) -> UUID | None:
        """Return the store of a subdomain."""
        return _as_store(name, "the subdomain")


class MembershipResolver(HeaderResolver):
    """Takes the one store that the signed-in user belongs to; of several, the one that header or session names."""

    def resolve(self, request: HttpRequest) -> UUID | None:
        """Return the named store, or the only one; None for a user of several who names none."""
        if (named := super().resolve(request) or SessionResolver().resolve(request)) is not None:
            return named
        stores = _memberships(request)
        return stores[0] if len(stores) == 1 else None


_RESOLVERS: Final[dict[str, type[StoreResolver]]] = {
    "membership": MembershipResolver,
    "header": HeaderResolver,
    "session": SessionResolver,
    "subdomain": SubdomainResolver,
}


def _memberships(request: HttpRequest) -> tuple[UUID, ...]:
    """Read the user's stores once a request."""
    known: dict[str, tuple[UUID, ...]] = request.__dict__
    if "_salon_jobs_stores" not in known:
        known["_salon_jobs_stores"] = stores_of(request.user)
    return known["_salon_jobs_stores"]


def _as_store(value: str, source: str) -> UUID:
    try:
        return UUID(value)
    except ValueError:
        raise StoreRefused(f"{source} must be the uuid of a store", status=400) from None
