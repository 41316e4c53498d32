"""What every test of the agent starts from."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio

from machinery.runtime.clock import ManualClock
from tests.fakes.credentials import MemorySecrets
from tests.fakes.hub import MemoryHub
from tests.fakes.several import Several
from tests.fakes.stage import Stage
from tests.fixtures.virtual_loops import pytest_asyncio_loop_factories, pytest_pycollect_makeitem

__all__ = ["pytest_asyncio_loop_factories", "pytest_pycollect_makeitem"]


@pytest.fixture
def new_stage(tmp_path: Path) -> Callable[[], Stage]:
    """Makes a stage with a hub, a clock and a folder of its own."""
    numbers = count()

    def made() -> Stage:
        clock = ManualClock()
        hub, file = MemoryHub(clock), tmp_path / f"stage-{next(numbers)}" / "bootstrap.kubeconfig"
        file.parent.mkdir()
        file.write_bytes(hub.bootstrap_kubeconfig())
        return Stage(hub, clock, file)

    return made


@pytest.fixture
def stage(new_stage: Callable[[], Stage]) -> Stage:
    return new_stage()


@pytest.fixture
def secrets() -> MemorySecrets:
    return MemorySecrets()


@pytest.fixture
def clock(stage: Stage) -> ManualClock:
    return stage.clock


@pytest_asyncio.fixture(loop_scope="function")
async def joined(stage: Stage) -> Stage:
    """The agent has registered, and does not run any more."""
    await stage.joins()
    return stage


@pytest_asyncio.fixture(loop_scope="function")
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> Several:
    """An agent among two hubs; or with the arguments that a test gives as its parameter."""
    return Several(tmp_path, **getattr(request, "param", {}))
