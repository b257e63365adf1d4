from tests.unit.ops.conftest import reference_backend

__all__ = ["reference_backend"]
