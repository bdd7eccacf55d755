"""Query a container's own health endpoint: ``python healthcheck.py URL`` exits with 0 on HTTP 200, else with 1."""

from __future__ import annotations

import sys
from http.client import HTTPException
from urllib.error import URLError
from urllib.request import urlopen


def main(url: str) -> int:
    """Return 0 when the endpoint answers 200 within three seconds."""
    try:
        with urlopen(url, timeout=3) as answer:  # noqa: S310 - the address is written in compose.yaml
            return 0 if answer.status == 200 else 1
    except (URLError, HTTPException, OSError) as error:
        sys.stderr.write(f"{url}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
