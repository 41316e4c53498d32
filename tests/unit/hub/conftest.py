"""A store in memory and a cluster on its way into it."""

import sqlite3

import pytest

from hub.store.engine import parse_url, writing_engine
from hub.store.migrate import upgrade
from machinery.clock import ManualClock
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


@pytest.fixture
def newcomer(store: InlineStore) -> Newcomer:
    return Newcomer(store)
