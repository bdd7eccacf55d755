from typing import Any

from django.template.response import SimpleTemplateResponse

class Response(SimpleTemplateResponse):
    data: Any
    def __init__(self, data: Any = None, status: int | None = None) -> None: ...
