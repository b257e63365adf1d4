from tests.toy.fixtures import fake, place

__all__ = ["fake", "place"]
