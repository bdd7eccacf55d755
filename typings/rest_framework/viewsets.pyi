from typing import Any

from rest_framework.views import APIView

class ViewSet(APIView): ...

class ModelViewSet(APIView):
    queryset: Any
    serializer_class: type
    def perform_create(self, serializer: Any) -> None: ...
