"""Fixtures of the JIT's tests: an engine that knows nothing, a cache and locks of its own, the toy's assets, a fake compiler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chord_jit import assets, knobs
from chord_jit.jit import compiler, counters, engine, notices, schema
from chord_jit.jit.store import Store, user_store
from tests.toy.fake import FakeCompiler
from tests.toy.family import ASSETS


@dataclass(frozen=True)
class Place:
    """Folders of one test."""

    cache: Path
    locks: Path

    @property
    def root(self) -> Path:
        return self.cache / schema.STORE_FOLDER

    @property
    def store(self) -> Store:
        return user_store()

    def entries(self) -> list[Path]:
        return sorted(path for path in self.root.glob("??/*") if len(path.name) == 64)

    def leftovers(self) -> list[Path]:
        return sorted(self.root.glob(".staging/*"))


@pytest.fixture
def place(tmp_path) -> Iterator[Place]:
    place = Place(tmp_path / "cache", tmp_path / "locks")
    with assets.scope(ASSETS), knobs.scope(CHORD_CACHE_DIR=str(place.cache), CHORD_LOCK_DIR=str(place.locks)):
        forget()
        yield place
    forget()


@pytest.fixture
def fake(place, tmp_path) -> Iterator[FakeCompiler]:
    fake = FakeCompiler(tmp_path / "ledger")
    with compiler.scope(fake):
        yield fake


def forget() -> None:
    engine.forget()
    notices.forget()
    counters.reset()
