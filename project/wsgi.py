"""WSGI application of the web process, which connects as the web role (``DATABASE_URL``)."""

from __future__ import annotations

import os

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.wsgi import get_wsgi_application

from salon_jobs.process.logs import configure_logging
from salon_jobs.process.web_roles import guard_web_roles

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
application = get_wsgi_application()
configure_logging()

if not settings.DATABASES["default"]["NAME"]:
    raise ImproperlyConfigured(
        "the web process needs DATABASE_URL in its environment: postgresql://app:password@host/db"
    )
guard_web_roles()
