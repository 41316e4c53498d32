"""What `spoke doctor` finds on the way to the hub, and what it says to do."""

from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from machinery.clock import ManualClock
from machinery.errors import ForbiddenError, UnavailableError
from machinery.identity import HubId
from spoke.bootstraps import BootstrapFile, Bootstraps
from spoke.doctor import Doctor, Network, Patient, Step
from spoke.kubeconfigs import HOWEVER
from spoke.ports import SecretSnapshot
from tests.fakes.credentials import MemorySecrets
from tests.fakes.hub import MemoryHub
from tests.fakes.stage import OWNER, Stage, until
from tests.unit.spoke.test_agent import is_available


@dataclass
class WordyNetwork(Network):
    """Everything answers, unless it is told not to."""

    unknown: bool = False
    refused: bool = False
    hangs: bool = False
    probe: tuple[int, str] | OSError = (200, "ok\n")
    asked: list[str] = field(default_factory=list)

    async def resolve(self, host: str) -> str:
        del host
        if self.unknown:
            raise OSError(-2, "Name or service not known")
        return "127.0.0.1"

    async def connect(self, host: str, port: int) -> None:
        self.asked.append(f"{host}:{port}")
        if self.hangs:
            raise TimeoutError
        if self.refused:
            raise ConnectionRefusedError(111, "Connection refused")

    async def ask(self, address: str, path: str) -> tuple[int, str]:
        self.asked.append(f"{address}{path}")
        if isinstance(self.probe, OSError):
            raise self.probe
        return self.probe


@pytest.fixture
def network() -> WordyNetwork:
    return WordyNetwork()


def patient(stage: Stage, network: WordyNetwork) -> Patient:
    return Patient(
        bootstrap=Bootstraps([BootstrapFile(stage.file)]),
        management=stage.cluster,
        secrets=stage.secrets,
        dial=stage.hub.dial,
        clock=stage.clock,
        network=network,
        probes="127.0.0.1:8000",
    )


async def found(looked_at: Patient) -> dict[str, Step]:
    return {step.name: step async for step in Doctor(looked_at).steps()}


@pytest.fixture
async def joined(stage: Stage) -> Stage:
    async with stage.running():
        await until(lambda: is_available(stage))
    return stage


async def test_where_all_is_well_every_step_says_so(joined: Stage, network: WordyNetwork) -> None:
    steps = await found(patient(joined, network))
    assert list(steps) == ["this cluster", "stored credential", "name", "connection", "hub", "agent"]
    assert all(step.ok for step in steps.values()), steps
    assert "until" in steps["stored credential"].said
    assert network.asked == ["127.0.0.1:8443", "127.0.0.1:8000/readyz"]


async def test_it_writes_nothing_and_opens_no_session(joined: Stage, network: WordyNetwork) -> None:
    before, sessions = await joined.secrets.read(OWNER), len(joined.hub.sessions)
    joined.hub.calls.clear()
    await found(patient(joined, network))
    assert joined.hub.calls == ["info"]
    assert await joined.secrets.read(OWNER) == before
    assert len(joined.hub.sessions) == sessions


async def test_before_the_first_registration_the_bootstrap_kubeconfig_is_followed(stage: Stage, network: WordyNetwork) -> None:
    steps = await found(patient(stage, network))
    assert list(steps) == ["this cluster", "stored credential", "bootstrap kubeconfig", "name", "connection", "hub", "agent"]
    assert all(step.ok for step in steps.values()), steps
    assert "there is no hub kubeconfig yet" in steps["stored credential"].said


async def test_an_expired_bootstrap_credential_says_what_to_do(stage: Stage, network: WordyNetwork, clock: ManualClock) -> None:
    clock.advance(timedelta(hours=2))
    steps = await found(patient(stage, network))
    assert not steps["bootstrap kubeconfig"].ok
    assert "hubctl create bootstrap-kubeconfig" in steps["bootstrap kubeconfig"].advice
    assert "hub" not in steps


async def test_a_missing_bootstrap_kubeconfig_does_not_matter_to_one_that_has_joined(
    joined: Stage, network: WordyNetwork
) -> None:
    joined.file.unlink()
    assert all(step.ok for step in (await found(patient(joined, network))).values())


async def test_an_expired_credential_that_can_come_back_is_no_fault(
    joined: Stage, network: WordyNetwork, clock: ManualClock
) -> None:
    clock.advance(timedelta(days=40))
    steps = await found(patient(joined, network))
    assert "its recovery certificate brings it back" in steps["stored credential"].said
    assert steps["hub"].ok


async def test_a_damaged_credential_is_named_and_the_bootstrap_kubeconfig_followed(
    joined: Stage, network: WordyNetwork
) -> None:
    snapshot = await joined.secrets.read(OWNER)
    await joined.secrets.write(OWNER, {**snapshot.contents, "tls.key": b"garbage"}, snapshot.version)
    steps = await found(patient(joined, network))
    assert not steps["stored credential"].ok
    assert "tls.key" in steps["stored credential"].said
    assert steps["hub"].ok


async def test_a_cluster_that_does_not_answer_ends_the_walk(joined: Stage, network: WordyNetwork) -> None:
    class Away(type(joined.cluster)):  # type: ignore[misc]
        async def version(self) -> str:
            raise UnavailableError("connection refused")

    steps = await found(replace(patient(joined, network), management=Away()))
    assert not steps["this cluster"].ok
    assert list(steps) == ["this cluster", "agent"]


@pytest.mark.parametrize(
    ("trouble", "step", "said"),
    [
        (WordyNetwork(unknown=True), "name", "Name or service not known"),
        (WordyNetwork(refused=True), "connection", "Connection refused"),
        (WordyNetwork(hangs=True), "connection", "no answer in time"),
    ],
    ids=["dns", "refused", "silent"],
)
async def test_a_break_in_the_network_is_found_where_it_is(joined: Stage, trouble: WordyNetwork, step: str, said: str) -> None:
    steps = await found(patient(joined, trouble))
    assert (steps[step].ok, steps[step].said) == (False, said)
    assert steps[step].advice
    assert "hub" not in steps


async def test_a_hub_with_another_id_is_named(joined: Stage, network: WordyNetwork) -> None:
    joined.hub.hub_id = HubId("0f1e2d3c-0000-4000-8000-000000000009")
    step = (await found(patient(joined, network)))["hub"]
    assert not step.ok
    assert "another hub answers" in step.said


async def test_a_revoked_credential_needs_a_new_bootstrap_kubeconfig(joined: Stage, network: WordyNetwork) -> None:
    joined.hub.revoked.update(joined.hub.issued)
    step = (await found(patient(joined, network)))["hub"]
    assert not step.ok
    assert "hubctl create bootstrap-kubeconfig" in step.advice


@pytest.mark.parametrize(("ahead", "word"), [(timedelta(minutes=2), "ahead of"), (-timedelta(minutes=2), "behind")])
async def test_clocks_that_are_apart_are_told(joined: Stage, network: WordyNetwork, ahead: timedelta, word: str) -> None:
    ours = ManualClock(joined.clock.now() - ahead)
    step = (await found(replace(patient(joined, network), clock=ours)))["hub"]
    assert not step.ok
    assert f"its clock is 120 s {word} this machine's" in step.said


async def test_the_agents_own_words_are_passed_on(joined: Stage) -> None:
    waiting = "not ready: waiting for the hub to accept this cluster (hubctl accept) (no beat was acknowledged yet)\n"
    step = (await found(patient(joined, WordyNetwork(probe=(503, waiting)))))["agent"]
    assert not step.ok
    assert step.said == waiting.strip()
    assert "hubctl accept" in step.advice


async def test_an_agent_that_does_not_run_is_said_so(joined: Stage) -> None:
    step = (await found(patient(joined, WordyNetwork(probe=ConnectionRefusedError(111, "Connection refused")))))["agent"]
    assert not step.ok
    assert "spoke run" in step.advice


async def test_an_agent_whose_probes_have_any_port_is_not_asked(joined: Stage, network: WordyNetwork) -> None:
    steps = await found(replace(patient(joined, network), probes="127.0.0.1:0"))
    assert "agent" not in steps


async def test_behind_a_proxy_the_proxy_is_looked_at(joined: Stage, network: WordyNetwork) -> None:
    reach = replace(HOWEVER, proxy_url="http://user:canary@proxy.example:3128")
    looked_at = replace(patient(joined, network), reach=reach, bootstrap=Bootstraps([BootstrapFile(joined.file, reach)]))
    steps = await found(looked_at)
    assert network.asked[0] == "proxy.example:3128"
    assert not any("canary" in step.said for step in steps.values())


async def test_each_of_several_hubs_is_looked_at_with_its_own_credential(joined: Stage, network: WordyNetwork) -> None:
    second = MemoryHub(joined.clock, hub_id=HubId("22222222-0000-4000-8000-000000000002"))
    hubs = {hub.authority.certificate: hub for hub in (joined.hub, second)}
    file, other = joined.file.with_name("east.kubeconfig"), joined.file.with_name("west.kubeconfig")
    file.write_bytes(joined.file.read_bytes())
    other.write_bytes(second.bootstrap_kubeconfig())
    both = replace(
        patient(joined, network),
        bootstrap=Bootstraps([BootstrapFile(file), BootstrapFile(other), BootstrapFile(file.with_name("north"))]),
        dial=lambda address, identity: hubs[address.ca].dial(address, identity),
    )
    steps = await found(both)
    assert steps["east (owner): hub"].ok
    assert "until" in steps["east (owner): stored credential"].said
    assert steps["west: hub"].ok
    assert "no hub kubeconfig yet" in steps["west: stored credential"].said
    assert not steps["list of hubs"].ok
    assert "north cannot be read" in steps["list of hubs"].said
    second.away = True
    steps = await found(both)
    assert steps["east (owner): hub"].ok, "a break at one says nothing of the other"
    assert not steps["west: hub"].ok


async def test_secrets_that_cannot_be_read_are_told_and_the_bootstrap_kubeconfig_followed(
    joined: Stage, network: WordyNetwork
) -> None:
    class Refused(MemorySecrets):
        async def read(self, name: str) -> SecretSnapshot:
            raise ForbiddenError(f"{name} is forbidden")

    steps = await found(replace(patient(joined, network), secrets=Refused()))
    assert not steps["stored credential"].ok
    assert "give the agent get" in steps["stored credential"].advice
    assert steps["hub"].ok
