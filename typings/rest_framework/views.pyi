from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.request import Request

class APIView:
    authentication_classes: ClassVar[list[type]]
    permission_classes: ClassVar[list[type]]
    renderer_classes: ClassVar[list[type]]
    request: Request
    response: HttpResponseBase
    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Callable[..., HttpResponseBase]: ...
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase: ...
    def perform_authentication(self, request: Request) -> None: ...
    def permission_denied(self, request: Request, message: str | None = None, code: str | None = None) -> NoReturn: ...
    def handle_exception(self, exc: Exception) -> HttpResponseBase: ...
    def finalize_response(
        self, request: Request, response: HttpResponseBase, *args: Any, **kwargs: Any
    ) -> HttpResponseBase: ...
