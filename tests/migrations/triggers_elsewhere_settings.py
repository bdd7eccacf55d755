"""Settings of the demo project with the function of triggers in another schema."""

from project.settings import *  # noqa: F403

PGTRIGGER_SCHEMA = "shop"
