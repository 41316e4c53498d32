"""A store in memory and a cluster on its way into it."""

import pytest

from machinery.clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import Newcomer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def newcomer(store: MemoryStore) -> Newcomer:
    return Newcomer(store)
