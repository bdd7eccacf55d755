from typing import Any

class SimpleRouter:
    urls: list[Any]
    def register(self, prefix: str, viewset: type, basename: str | None = None) -> None: ...
