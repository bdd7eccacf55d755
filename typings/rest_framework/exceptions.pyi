from typing import Any

class APIException(Exception):
    status_code: int
    def __init__(self, detail: Any = None, code: str | None = None) -> None: ...

class ValidationError(APIException): ...
