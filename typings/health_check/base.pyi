from abc import ABC

class HealthCheck(ABC):
    def run(self) -> object: ...
