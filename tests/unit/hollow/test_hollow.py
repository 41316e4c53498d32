"""Agents of a load in virtual time, the verdict on what they measured, the demo's folder, and faults of hollow clusters."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hollow.demo.place import DemoFolder, OccupiedError
from hollow.faults import Faults
from hollow.load.fleet import Fleet
from hollow.load.report import Latencies, Measures, Verdict, generator_findings, judge, write_report
from hollow.load.settings import Limits, LoadSettings, Profile
from machinery.client.kubeconfig import parse_kubeconfig
from machinery.errors import InvalidError
from machinery.identity import AddOnName
from machinery.runtime.tasks import cancel_and_wait
from spoke.credentials.kubeconfigs import connection_of
from spoke.domain.addon import AddOn
from spoke.ports.hub import ClientIdentity, HubAddress, HubClient, HubLostError
from tests.checks import check_refusals
from tests.fakes.hub import MemoryHub
from tests.fakes.virtual_time import LoopClock, VirtualLoop

AGENTS = 12
SETTINGS = LoadSettings(Profile.STEADY, "load.bootstrap", "", AGENTS, ramp=5.0, share=0.25)


def test_percentiles_of_merged_histograms_are_at_most_two_percent_too_high() -> None:
    random, parts = Random(1), [Latencies() for _ in range(3)]
    drawn = [random.expovariate(20) for _ in range(5000)]
    for index, seconds in enumerate(drawn):
        parts[index % 3].observe(seconds)
    merged = Latencies()
    for part in parts:
        merged.merge(Latencies.read(json.loads(json.dumps(part.document()))))
    assert (merged.count, merged.longest) == (len(drawn), max(drawn))
    for share in (0.001, 0.5, 0.9, 0.99, 0.999, 1.0):
        exact = sorted(drawn)[max(int(share * len(drawn)) - 1, 0)]
        assert exact <= merged.percentile(share) <= max(exact * 1.021, 1e-5)
    assert Latencies().percentile(0.99) == 0.0


def test_verdict_follows_the_limits_and_a_run_bound_by_its_generator_does_not_count() -> None:
    def found(*, lag: float = 0.001, lost: int = 0, ready: int = AGENTS, loop: float = 0.5, failures: int = 0) -> Measures:
        measures = Measures(loop_share=loop)
        measures.counts.update(beats_lost=lost, ready=ready)
        for latency, seconds in (("lag", lag), ("beat", 0.2), ("reconnect", 2.0), ("join", 4.0)):
            measures.observe(latency, seconds)
        for _ in range(failures):
            measures.fail("session: silent", "no acknowledgement")
        return measures

    storm = replace(SETTINGS, profile=Profile.STORM)
    strict = Limits(lost_beats=3, p99=1.0, errors=2)
    cases: tuple[tuple[Measures, LoadSettings, Verdict, str], ...] = (
        (found(lost=99, failures=9), SETTINGS, Verdict.PASSED, ""),
        (found(lost=3, failures=2), replace(SETTINGS, limits=strict), Verdict.PASSED, ""),
        (found(lost=4), replace(SETTINGS, limits=strict), Verdict.FAILED, "4 beats were lost"),
        (found(failures=3), replace(SETTINGS, limits=strict), Verdict.FAILED, "3 errors"),
        (found(), replace(storm, limits=strict), Verdict.FAILED, "latency reconnect is 2.0"),
        (found(), replace(storm, profile=Profile.JOIN, limits=strict), Verdict.FAILED, "latency join is 4.0"),
        (found(ready=11), SETTINGS, Verdict.FAILED, "1 of 12 agents were not connected"),
        (found(lag=0.2, lost=4), replace(SETTINGS, limits=strict), Verdict.GENERATOR_BOUND, "its lag is 0.2"),
        (found(lag=0.15), storm, Verdict.PASSED, ""),
        (found(loop=0.95), SETTINGS, Verdict.GENERATOR_BOUND, "95% of a processor"),
    )
    wrong = []
    for number, (measures, settings, verdict, reason) in enumerate(cases):
        judged, reasons = judge(measures, settings)
        report = write_report(measures, settings, 60.0).document
        if judged is not verdict or reason not in "; ".join(reasons) or report["reasons"] != reasons:
            wrong.append((number, judged, reasons))
        assert LoadSettings.read(json.loads(json.dumps(report["settings"]))) == settings
    assert wrong == []


class Scene:
    """A running fleet at a hub in memory."""

    def __init__(self, folder: Path, hub: MemoryHub | None = None, **settings: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = LoopClock(self.loop)
        self.hub = hub or MemoryHub(self.clock)
        self.hub.beat_interval = timedelta(seconds=10)
        self.dials: list[float] = []
        connection = connection_of(parse_kubeconfig(self.hub.bootstrap_kubeconfig(), source="load.bootstrap"))
        self.fleet = Fleet(replace(SETTINGS, state_dir=str(folder), **settings), 0, connection, lambda: self._dial, self.clock)

    def _dial(self, address: HubAddress, identity: ClientIdentity) -> HubClient:
        self.dials.append(self.loop.time())
        return self.hub.dial(address, identity)

    def found(self) -> Measures:
        return Measures.merged([self.fleet.snapshot()])

    async def after(self, seconds: float) -> Measures:
        """What is measured in the next seconds."""
        self.fleet.execute("measure")
        await asyncio.sleep(seconds)
        return self.found()


@asynccontextmanager
async def scene_of(folder: Path, **settings: Any) -> AsyncIterator[Scene]:
    """A fleet all of whose agents are connected."""
    scene = Scene(folder, **settings)
    running = asyncio.create_task(scene.fleet.run())
    try:
        await asyncio.sleep(SETTINGS.ramp + 10)
        yield scene
    finally:
        await cancel_and_wait(running)
        assert running.cancelled(), running.exception()


async def test_agents_join_once_and_beat_report_drain_and_renew_as_real_ones(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        found = scene.found()
        assert (found.counts["joins"], found.counts["open"], found.counts["ready"]) == (AGENTS, AGENTS, AGENTS)
        assert not found.errors
        scene.hub.set_addons([AddOn(AddOnName("work"), "ns")])
        found = await scene.after(300)
        assert AGENTS * 300 / 10 <= found.counts["beats"] == found.counts["beats_acknowledged"] <= AGENTS * 300 / 7.5 + AGENTS
        assert found.counts["reports"] == AGENTS
        assert all(len(session.addon_reports) == 1 for session in scene.hub.open_sessions)
        scene.hub.beat_interval = timedelta(seconds=2)
        await asyncio.sleep(10)
        assert (await scene.after(60)).counts["beats"] >= AGENTS * 30, "at the interval that the hub asks for"
        for session in scene.hub.open_sessions:
            session.drain()
        scene.hub.ask_to_renew(timedelta(seconds=30))
        found = await scene.after(60)
        assert (found.counts["drains"], found.counts["renewals"]) == (AGENTS, AGENTS)
        assert (found.counts["open"], found.counts["beats_lost"], found.errors.total()) == (AGENTS, 0, 0)
        issued = len(scene.hub.issued)
    async with scene_of(tmp_path, hub=scene.hub) as second:
        assert second.found().counts["ready"] == AGENTS
    assert len(scene.hub.issued) == issued, "the stored certificates are used again"
    assert {file.stat().st_mode & 0o777 for file in os.scandir(tmp_path)} == {0o600}


async def test_agents_reconnect_with_jittered_back_off_and_each_beat_of_the_outage_is_lost(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        scene.hub.away, began, before = True, scene.loop.time(), len(scene.dials)
        for session in scene.hub.open_sessions:
            session.end(HubLostError("the hub is gone"))
        await scene.after(300)
        attempts = [at - began for at in scene.dials[before:]]
        first = [sum(at <= limit for at in attempts) for limit in (0.5, 300)]
        assert first[0] >= AGENTS, "the first attempt follows within the first pause"
        assert AGENTS * 300 / 30 <= first[1] <= AGENTS * 50, "and the pauses grow to 30 s"
        assert len(set(attempts)) > AGENTS * 5, "no two agents have the same pauses"
        scene.hub.away = False
        found = await scene.after(60)
        assert found.counts["open"] == AGENTS
        assert found.counts["beats_lost"] + AGENTS >= AGENTS * 300 / 10, "beats that were due while there was no hub"
        assert 300 <= found.get("reconnect").percentile(0.5) <= 331
        assert found.get("beat").longest <= 10, "a beat that waited for the session counts from when it was due"
        scene.hub.silent = True
        found = await scene.after(16)
        assert set(found.errors) == {"session: silent"}
        assert found.counts["beats_lost"] >= AGENTS


async def test_storms_and_silences_are_no_errors_and_a_stalled_generator_is_noticed(tmp_path: Path) -> None:
    async with scene_of(tmp_path, profile=Profile.CHURN, changes_per_minute=6.0) as scene:
        found = await scene.after(200)
        assert AGENTS * 15 <= found.counts["changes"] <= AGENTS * 25
        for _ in range(3):
            scene.fleet.execute("storm")
            found = await scene.after(20)
            assert (found.counts["sessions"], found.get("reconnect").count, found.errors.total()) == (AGENTS, AGENTS, 0)
            assert 0 < found.get("reconnect").longest <= 0.5, "a session resets the back-off"
        silent: list[set[str]] = []
        for _ in range(4):
            scene.fleet.execute("flap")
            found = await scene.after(20)
            assert (found.counts["open"], found.counts["beats_lost"], found.errors.total()) == (9, 0, 0)
            silent.append(
                {str(each.cluster) for each in scene.hub.sessions} - {str(each.cluster) for each in scene.hub.open_sessions}
            )
        assert len(set.union(*silent)) == AGENTS, "other agents each time"
        scene.fleet.execute("measure")
        assert isinstance(scene.loop, VirtualLoop)
        scene.loop.stand_still(9.0)
        await asyncio.sleep(1)
        found = scene.found()
        assert found.get("beat").longest > 1, "beats count from when they were due"
        assert "its lag" in generator_findings(found, SETTINGS)[0]


async def test_unreadable_state_costs_a_join(tmp_path: Path) -> None:
    for index, content in enumerate((b"", b"{", b"[]", b'{"tls.crt": 1}')):
        (tmp_path / f"load-{index}.json").write_bytes(content)
    async with scene_of(tmp_path, agents=4) as scene:
        assert scene.found().counts["joins"] == 4


def test_place_is_emptied_and_kept_from_a_second_demo(tmp_path: Path) -> None:
    place = DemoFolder(tmp_path / "demo")
    with place.claimed():
        (place.logs / "old.log").write_text("old")
        with pytest.raises(OccupiedError, match="another demo is running"), place.claimed():
            pass
    with place.claimed():
        assert list(place.logs.iterdir()) == []


def test_faults_round_trip_and_unknown_words_are_refused() -> None:
    assert Faults.named("slow=1500ms", "not-live") == Faults(slow=timedelta(seconds=1.5), not_live=True)
    assert Faults.named() == Faults()
    faults = Faults(slow=timedelta(seconds=2), error=True, hang=True, not_live=True, no_livez=True, stall_after_write=3)
    assert (Faults.from_document(faults.document()), Faults().document()) == (faults, {})
    check_refusals(
        InvalidError,
        Faults.named,
        (
            *(("broken", 'no fault is called "broken": use error, hang'), ("slow", "slow=2s"), ("slow=-1s", "slow=2s")),
            *(("stall-after-write=0", "from 1 on"), ("stall-before-write", "from 1 on")),
        ),
    )
