"""A store in memory and a cluster on its way into it."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from hub.store.engine.engine import parse_url, writing_engine
from hub.store.migrate import upgrade
from machinery.runtime.clock import ManualClock
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import Newcomer, fresh_store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> InlineStore:
    return fresh_store(clock)


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> sqlite3.Connection:
    """The newest schema on SQLite, and nothing in it; for plans, which write nothing."""
    file = tmp_path_factory.mktemp("plans") / "hub.db"
    engine = writing_engine(parse_url(f"sqlite:///{file}"))
    upgrade(engine)
    engine.dispose()
    return sqlite3.connect(file)


def failing(
    monkeypatch: pytest.MonkeyPatch, module: Any, use_case: str, error: Exception, when: Callable[..., bool]
) -> Callable[[], None]:
    """Has the use case raise this where its arguments after the transaction are meant, until what is returned is called."""
    right = getattr(module, use_case)

    def wrong(tx: Any, *args: Any, **kwargs: Any) -> Any:
        if when(*args):
            raise error
        return right(tx, *args, **kwargs)

    monkeypatch.setattr(module, use_case, wrong)
    return lambda: monkeypatch.setattr(module, use_case, right)


def transactions_of(store: InlineStore, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The use cases that write from now on."""
    written, run = list[object](), store.run

    async def noted(use_case: Any, *args: Any, **kwargs: Any) -> Any:
        written.append(use_case)
        return await run(use_case, *args, **kwargs)

    monkeypatch.setattr(store, "run", noted)
    return written


@pytest.fixture
def newcomer(store: InlineStore) -> Newcomer:
    return Newcomer(store)
