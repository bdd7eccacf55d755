from typing import Any

import pytest

class LoadScopeScheduling:
    def __init__(self, config: pytest.Config, log: Any = ...) -> None: ...
    def _split_scope(self, nodeid: str) -> str: ...
