from tests.unit.ops.conftest import fresh_compiler, reference_backend

__all__ = ["fresh_compiler", "reference_backend"]
