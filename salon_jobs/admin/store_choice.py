"""The page where staff of several stores choose the one they work in."""

from __future__ import annotations

from operator import itemgetter
from typing import Final

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect

from salon_jobs.conf import settings as conf
from salon_jobs.dashboard.labels import store_name
from salon_jobs.tenancy.resolvers import SESSION_KEY, stores_of

# Query parameter with which any page of a limited user shows the choice and accepts it.
CHOICE: Final = "choose_store"
_MOST: Final = 100


@never_cache
@csrf_protect
def choose_store(request: HttpRequest, site: AdminSite) -> HttpResponseBase:
    """Offer the signed-in user's stores, or save the choice and return to the page.

    The session keeps the choice, for REQUEST_STORE "membership" and "session". Raises PermissionDenied for a store that
    is not the user's, and if there is none to choose.
    """
    # Without memberships, a custom resolver names the store, or there is none.
    stores = () if conf.membership_model is None else stores_of(request.user)
    if not stores:
        raise PermissionDenied("you belong to no store, and may not see all")
    if request.method == "POST" and CHOICE in request.POST:
        chosen = {str(store) for store in stores} & {request.POST[CHOICE]}
        if not chosen:
            raise PermissionDenied("you do not belong to this store")
        request.session[SESSION_KEY] = chosen.pop()
        return HttpResponseRedirect(request.path)
    choices = sorted(((str(store), store_name(store)) for store in stores[:_MOST]), key=itemgetter(1))
    context = {**site.each_context(request), "title": "Choose a store", "choices": choices, "parameter": CHOICE}
    return TemplateResponse(request, "admin/salon_jobs/choose_store.html", context)
