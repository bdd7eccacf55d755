"""Adds policies to the tables without a store, and revokes what the worker role's tasks do not need."""

from typing import Final

from django.db import migrations

from salon_jobs.access import SystemScope
from salon_jobs.access.operations import LocksBriefly, ProtectModel

_ADMIN_MODELS: Final = (
    "admin.LogEntry",
    "auth.Group",
    "auth.Group_permissions",
    "auth.Permission",
    "auth.User",
    "auth.User_groups",
    "auth.User_user_permissions",
    "contenttypes.ContentType",
    "sessions.Session",
)


class Migration(LocksBriefly):
    """Migration after the last one of each app whose tables it names. Its locks are brief, and it scans nothing."""

    dependencies = [
        ("salon", "0003_invitation_cleanup_function"),
        ("admin", "0003_logentry_add_action_flag_choices"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("sessions", "0001_initial"),
    ]

    operations = [
        migrations.AddConstraint("operator", SystemScope(name="operator_scope", worker=())),
        migrations.AddConstraint(
            "operatorsession",
            # The nightly clean-up deletes them by expiry.
            SystemScope(name="operator_session_scope", worker={"SELECT": ("id", "expires_at"), "DELETE": ()}),
        ),
        *(ProtectModel(model, SystemScope(name="admin_scope", worker=())) for model in _ADMIN_MODELS),
    ]
