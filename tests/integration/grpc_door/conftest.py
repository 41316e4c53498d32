from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.rpc_stage import RpcStage, rpc_stage


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[RpcStage]:
    async with rpc_stage(tmp_path) as stage:
        yield stage
