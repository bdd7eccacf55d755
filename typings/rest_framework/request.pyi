from typing import Any

from django.http import HttpRequest

class Request(HttpRequest):
    data: Any
    auth: Any
