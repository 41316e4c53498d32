"""A load at a whole hub in this process, and the program with its worker processes."""

import asyncio
import json
from datetime import timedelta
from io import StringIO
from pathlib import Path

from hollow.load.fleet import Fleet, dial_over_grpc, read_bootstrap
from hollow.load.report import LoadResult, Verdict
from hollow.load.run import Progress, measure
from hollow.load.settings import Limits, LoadSettings, Profile
from machinery.client.kubeconfig import ClusterEntry, HubEndpoint, write_kubeconfig
from machinery.runtime.clock import SystemClock
from machinery.runtime.tasks import cancel_and_wait
from tests.fakes.inprocess_hub import HUB
from tests.fakes.rpc_stage import RpcStage, rpc_stage
from tests.programs import run

AGENTS = 30
LIMITS = Limits(errors=0, lag=60.0)
"""A busy machine delays beats and generator; that it would be noticed is a unit test."""


async def bootstrap_kubeconfig(stage: RpcStage) -> bytes:
    door = HubEndpoint(f"localhost:{stage.door.port}", HUB)
    entry = ClusterEntry("hub", "https://localhost:6443", stage.issuer.trust_bundle, door)
    return write_kubeconfig(entry, await stage.bootstrap(None), user="load")


async def test_thirty_agents_join_stay_and_come_back_from_a_storm_and_the_program_does_the_same(tmp_path: Path) -> None:
    state, file = tmp_path / "state", tmp_path / "load.bootstrap"
    state.mkdir()
    paces = {
        "beat_interval": timedelta(milliseconds=500),
        "default_lease_duration": timedelta(seconds=2),
        "beats_per_second": 0.0,
    }
    async with rpc_stage(tmp_path / "hub", leads=True, auto_approve=("*",), **paces) as stage:
        file.write_bytes(await bootstrap_kubeconfig(stage))
        bootstrap = str(file)
        settings = LoadSettings(Profile.JOIN, bootstrap, str(state), AGENTS, ramp=0.5, limits=LIMITS)
        clock = SystemClock()
        fleet = Fleet(settings, 0, read_bootstrap(bootstrap), dial_over_grpc(clock), clock)
        shown = StringIO()

        async def ran(profile: Profile, **more: float) -> LoadResult:
            async def pause(seconds: float) -> bool:
                await asyncio.wait({running}, timeout=min(seconds, 0.2))
                return running.done()

            run_settings = LoadSettings.read({**settings.document(), "profile": profile, **more})
            return await measure(fleet, run_settings, pause, Progress(run_settings, shown))

        running = asyncio.create_task(fleet.run())
        try:
            joined = await ran(Profile.JOIN)
            steady = await ran(Profile.STEADY, duration=2.0)
            storm = await ran(Profile.STORM, duration=4.0, every=60.0)
        finally:
            await cancel_and_wait(running)
        for result in (joined, steady, storm):
            assert result.verdict is Verdict.PASSED, result.document
        assert joined.document["counts"]["joins"] == joined.document["latencies"]["join"]["count"] == AGENTS
        assert steady.document["counts"]["beats_acknowledged"] >= AGENTS * 3
        assert "joins" not in steady.document["counts"]
        back = storm.document["counts"]["open"]
        assert storm.document["latencies"]["reconnect"]["count"] == back > 0, "all were away, and a busy machine is slow"
        assert f"sessions {AGENTS}/{AGENTS}" in shown.getvalue()

        options = (f"--bootstrap-kubeconfig={bootstrap}", f"--state-dir={state}", "--agents=6", "--processes=2", "--ramp=100ms")
        report = tmp_path / "report.json"
        further = ("--duration=2500ms", "--max-lag=1m", f"--report={report}", "--max-latency=1ms")
        ended = await run("hollow", "load", "steady", *options, *further)
        assert ended.returncode == 3, ended.stderr
        document = json.loads(report.read_text())
        assert (document["verdict"], document["counts"]["open"], document["counts"].get("joins")) == ("failed", 6, None)
        assert [reason.partition(" is ")[0] for reason in document["reasons"]] == ["the p99 of the latency beat"]
        assert "verdict: failed; the p99 of the latency beat is" in ended.stdout
        assert "PRIVATE KEY" not in report.read_text() + ended.stdout + ended.stderr
