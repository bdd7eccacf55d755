"""Page on which a user of several stores chooses one; the session keeps the choice."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any, Final

from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.http import escape_leading_slashes
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import StoreRefused
from salon_jobs.tenancy.names import store_name, store_words
from salon_jobs.tenancy.resolvers import memberships

# Query parameter with which a page shows the choice, and field in which the form sends it.
CHOICE: Final = "choose_store"
# Permission of users who are not limited to a store.
ALL_STORES: Final = "salon_jobs.view_all_stores"
_MOST: Final = 100


@never_cache
@csrf_protect
def choose_store(
    request: HttpRequest, template: str = "salon_jobs/choose_store.html", context: Mapping[str, Any] | None = None
) -> HttpResponseBase:
    """Offer the signed-in user's stores, or save the choice and return to the page.

    For ``REQUEST_STORE`` "membership" and "session". Raises StoreRefused for a store of others, and if the user has
    none.
    """
    # Without memberships, a custom resolver names the store, or there is none.
    stores = () if conf.membership_model is None else memberships(request)
    if not stores:
        raise StoreRefused(gettext("you belong to no %(store)s") % store_words())
    if request.method == "POST" and CHOICE in request.POST:
        chosen = {str(store) for store in stores} & {request.POST[CHOICE]}
        if not chosen:
            raise StoreRefused(gettext("you do not belong to this %(store)s") % store_words())
        request.session[conf.request_session_key] = chosen.pop()
        query = request.GET.copy()
        query.pop(CHOICE, None)
        path = escape_leading_slashes(request.path)
        return HttpResponseRedirect(f"{path}?{query.urlencode()}" if query else path)
    choices = sorted(((str(store), store_name(store)) for store in stores[:_MOST]), key=itemgetter(1))
    title = gettext("Choose one of your %(stores)s") % store_words()
    return render(request, template, {**(context or {}), "title": title, "choices": choices, "parameter": CHOICE})
