"""What the tests use of kubernetes-validate, which has no types."""

from typing import Any

def validate(data: dict[str, Any], desired_version: str, strict: bool = False) -> str: ...
