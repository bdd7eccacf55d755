"""The store in which a member of staff chose to work: the permitted stores, their names, and the log of choices."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest

from salon_jobs.access.store_names import stores_with_name
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key, store_model
from salon_jobs.core.records import StoreId
from salon_jobs.tenancy.choice import ALL_STORES
from salon_jobs.tenancy.context import tenant_context
from salon_jobs.tenancy.names import store_name
from salon_jobs.tenancy.resolvers import memberships

# Key of the session, different from the one for a store's own pages.
SESSION_KEY: Final = "salon_jobs_staff_store"
CHOSEN: Final = "Chose to work in it."
LEFT: Final = "Stopped working in it."
_MOST: Final = 20


def parsed(key: object) -> StoreId | None:
    """Return the key of a store, or None if it cannot be one."""
    try:
        return store_key().parse(key)
    except ValueError:
        return None


def may_choose(request: HttpRequest, store: StoreId) -> bool:
    """Return whether the signed-in user may work in a store: with the permission for all of them, or as a member."""
    user: Any = request.user
    return bool(user.has_perm(ALL_STORES)) or store in _memberships(request)


def chosen_store(request: HttpRequest) -> StoreId | None:
    """Return the store that the user has chosen and may still work in, or None."""
    store = parsed(request.session.get(SESSION_KEY))
    return store if store is not None and may_choose(request, store) else None


def choose(request: HttpRequest, store: StoreId | None) -> None:
    """Save the choice in the session, and log the previous and the new choice in the admin."""
    before = chosen_store(request)
    if store == before:
        return
    model: Any = store_model()
    user: Any = request.user
    for changed, message in ((before, LEFT), (store, CHOSEN)):
        if changed is not None:
            LogEntry.objects.create(
                user_id=user.pk,
                content_type=ContentType.objects.get_for_model(model, for_concrete_model=False),
                object_id=str(changed),
                object_repr=store_name(changed)[:200],
                action_flag=CHANGE,
                change_message=message,
            )
    if store is None:
        request.session.pop(SESSION_KEY, None)
    else:
        request.session[SESSION_KEY] = str(store)


def exists(store: StoreId) -> bool:
    """Return whether there is such a store; the web role sees it only in its own context."""
    model: Any = store_model()
    with tenant_context(store, switch=True) as context:
        found: bool = model._base_manager.using(context.alias).filter(pk=store).exists()
    return found


def find_stores(request: HttpRequest, text: str) -> dict[StoreId, str]:
    """Return stores that the user may choose, with their names: those with the text in their name, or as their key.

    A user of all stores searches the names that ``StoreIsolation(names=…)`` of the store model lets the operator's role
    read; members find their own stores.
    """
    user: Any = request.user
    if user.has_perm(ALL_STORES):
        found = stores_with_name(text, most=_MOST)
    else:
        names = {store: store_name(store) for store in _memberships(request)}
        found = {store: name for store, name in names.items() if text.casefold() in name.casefold()}
    key = parsed(text)
    if key is not None and may_choose(request, key) and exists(key):
        found[key] = store_name(key)
    return dict(sorted(found.items(), key=lambda item: (item[0] != key, item[1].casefold()))[:_MOST])


def last_used(request: HttpRequest) -> dict[StoreId, str]:
    """Return the stores that the user chose last and may still choose, newest first, by the log of the admin."""
    model: Any = store_model()
    user: Any = request.user
    kind = ContentType.objects.get_for_model(model, for_concrete_model=False)
    chosen = LogEntry.objects.filter(user_id=user.pk, content_type=kind, change_message=CHOSEN)
    used: dict[StoreId, str] = {}
    for key, name in chosen.order_by("-action_time").values_list("object_id", "object_repr")[:100]:
        store = parsed(key)
        if store is not None:
            used.setdefault(store, name)
    still = (store for store in used if may_choose(request, store) and exists(store))
    return {store: used[store] for store in islice(still, 5)}


def _memberships(request: HttpRequest) -> tuple[StoreId, ...]:
    return () if conf.membership_model is None else memberships(request)
