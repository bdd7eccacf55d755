"""Times as logs show them: to the second, with their time zone, so that operators can compare them."""

from __future__ import annotations

from typing import Final

DATETIME_FORMAT: Final = "Y-m-d H:i:s T"
