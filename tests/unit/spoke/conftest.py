"""What every test of the agent starts from."""

from pathlib import Path

import pytest

from machinery.clock import ManualClock
from tests.fakes.hub import MemoryHub
from tests.fakes.stage import Stage


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stage(clock: ManualClock, tmp_path: Path) -> Stage:
    hub = MemoryHub(clock)
    file = tmp_path / "bootstrap.kubeconfig"
    file.write_bytes(hub.bootstrap_kubeconfig())
    return Stage(hub, clock, file)
