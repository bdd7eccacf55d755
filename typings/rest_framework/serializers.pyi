from typing import Any

class empty: ...

class ModelSerializer:
    fields: dict[str, Any]

class HiddenField:
    def __init__(self, **options: Any) -> None: ...

class PrimaryKeyRelatedField:
    def __init__(self, **options: Any) -> None: ...

class UUIDField:
    def __init__(self, **options: Any) -> None: ...

def as_serializer_error(exc: Exception) -> dict[str, Any]: ...
