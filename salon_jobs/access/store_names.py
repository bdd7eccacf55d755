"""Search for stores by name, for operators: the web role sees a store's row only in the context of that store."""

from __future__ import annotations

from typing import Any

from django.db import ProgrammingError, transaction
from django.db.models import Case, Q, When
from django.utils.translation import gettext
from psycopg.errors import InsufficientPrivilege

from salon_jobs.access.constraints import StoreIsolation
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_model
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.records import StoreId
from salon_jobs.tenancy.active import expect_no_rows


def searched_names() -> tuple[str, ...]:
    """Return the fields of the store model that ``StoreIsolation(names=…)`` lets operators search; none without."""
    model = store_model()
    constraints = () if model is None else model._meta.constraints
    return next((each.names for each in constraints if isinstance(each, StoreIsolation)), ())


def stores_with_name(text: str, *, most: int) -> dict[StoreId, str]:
    """Return up to ``most`` stores with the text in their names, in any case, those named exactly so first.

    Searches ``searched_names``; without any there is none. Role: operator. Raises ConfigurationError if it may not read
    them yet.
    """
    model: Any = store_model()
    names = searched_names()
    if not names:
        return {}
    contain, equal = Q(), Q()
    for name in names:
        contain |= Q(**{f"{name}__icontains": text})
        equal |= Q(**{f"{name}__iexact": text})
    rows = model._default_manager.using(conf.reader_database).filter(contain)
    rows = rows.order_by(Case(When(equal, then=0), default=1), *names).values_list("pk", *names)
    try:
        # With one database user it owns the table, and owners see all stores.
        with transaction.atomic(using=conf.reader_database), expect_no_rows():
            found = list(rows[:most])
    except ProgrammingError as error:
        if not isinstance(error.__cause__, InsufficientPrivilege):
            raise
        said = gettext("names of stores cannot be searched: the operator's role may not read them yet; run migrate")
        raise ConfigurationError(said) from error
    return {store: " ".join(str(value) for value in values if value) for store, *values in found}


def stores_called(text: str) -> dict[StoreId, str]:
    """Return the stores with exactly this name, in any case; else up to twenty with the text in their names."""
    found = stores_with_name(text, most=20)
    exact = {store: name for store, name in found.items() if name.casefold() == text.casefold()}
    return exact or found
