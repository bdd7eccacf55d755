"""Holds the least that Django needs in a peer's worker: the database of ``ROWS_URL``, connections that stay open."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

_url = urlsplit(os.environ["ROWS_URL"])

SECRET_KEY = "x"  # noqa: S105
USE_TZ = True
INSTALLED_APPS = ["rows"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _url.path.lstrip("/"),
        "USER": _url.username,
        "PASSWORD": unquote(_url.password or ""),
        "HOST": _url.hostname,
        "PORT": _url.port,
        "CONN_MAX_AGE": None,
    }
}
