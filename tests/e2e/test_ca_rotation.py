"""Every certificate is replaced under open sessions without a lost beat; agents that were off for all of it come back.

Many whole agents live in this process, and talk over gRPC to a hub, or to two replicas of one, which are killed in each phase.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from machinery.client.kubeconfig import read_kubeconfig
from machinery.pki import parse_certificate, split_bundle
from spoke.credentials.kubeconfigs import stored_connection
from spoke.credentials.trust_bundle import fingerprints
from tests.e2e.crowd import Crowd, crowd_of
from tests.e2e.hubs import Hub, hubs_in
from tests.e2e.processes import Bench, is_available, recorded, until
from tests.e2e.replicas import Replica, Replicas, replicas_of, rows
from tests.e2e.test_replicas import FAST
from tests.fakes.stage import OWNER
from tests.programs import run
from tests.trials import SOAKING, soak_only, soaked, trials

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("quiet"), pytest.mark.timeout(1800 if SOAKING else 300)]

CAS = "/apis/hub.open-cluster-management.io/v1alpha1/certificateauthorities"
PHASES = ("Distributing", "Outgoing", "Retiring")
SESSIONS = trials(test=3, soak=500)
WITHIN = trials(test=100, soak=900)  # seconds that a phase may take
AGENTS, OFF = 200, 20


async def authorities(bench: Bench) -> list[dict[str, Any]]:
    return list((await bench.get(CAS))["items"])


async def until_phases(bench: Bench, *wanted: str) -> list[dict[str, Any]]:
    """Returns the CAs when these are their phases, in whatever order."""

    async def reached() -> list[dict[str, Any]] | None:
        found = await authorities(bench)
        return found if sorted(each["status"]["phase"] for each in found) == sorted(wanted) else None

    found: list[dict[str, Any]] = await until(reached, what=f"CAs are {wanted}", within=WITHIN)
    return found


def held(crowd: Crowd, number: int) -> Mapping[str, bytes]:
    return crowd.secrets[f"{crowd.prefix}-{number}"].contents(OWNER)


def issuer_of(contents: Mapping[str, bytes]) -> bytes | None:
    return parse_certificate(contents["tls.crt"]).authority_key_id


def trusted_by(contents: Mapping[str, bytes]) -> tuple[str, ...]:
    return fingerprints(stored_connection(contents).address.ca)


async def until_all(crowd: Crowd, numbers: range, holds: Callable[[Mapping[str, bytes]], bool], what: str) -> None:
    await until(lambda: all(holds(held(crowd, number)) for number in numbers), what=what, within=WITHIN)


def shown_by(hub: Hub) -> dict[str, tuple[bytes | None, int]]:
    """Of the serving certificate at each door: the CA and the serial."""
    https = urlsplit(read_kubeconfig(hub.admin).cluster.server)
    shown = {
        door: parse_certificate(ssl.get_server_certificate(("127.0.0.1", port), timeout=30).encode())
        for door, port in {"https": https.port or 0, "grpc": hub.path.port}.items()
    }
    return {door: (one.authority_key_id, one.serial) for door, one in shown.items()}


@soaked(SESSIONS)
async def test_every_certificate_is_replaced_under_open_sessions_without_a_lost_beat(tmp_path: Path) -> None:
    async with hubs_in(tmp_path) as hubs:
        await hubs.start(1, "--default-lease-duration=10s", "--beat-interval=1s", "--ca-rotation-patience=300ms")
        hub, everybody = hubs[0], range(SESSIONS)
        crowd = await crowd_of(hub.admin, SESSIONS)
        async with crowd.running():
            await crowd.all_heard()
            first, before = [held(crowd, number) for number in everybody], await asyncio.to_thread(shown_by, hub)
            output = await hub.hubctl("rotate", "cluster", "--all", "--within", f"{max(1, SESSIONS // 5)}s")
            assert f"{SESSIONS} clusters are asked to renew" in output

            def renewed(one: Mapping[str, bytes]) -> bool:
                return one["tls.key"] not in keys

            keys = {one["tls.key"] for one in first}
            await until_all(crowd, everybody, renewed, "all agents have renewed")
            second = [held(crowd, number) for number in everybody]
            for key in ("tls.key", "recovery.crt"):
                assert all(one[key] != other[key] for one, other in zip(first, second, strict=True))
            await hub.hubctl("ca", "rotate")
            found = await until_phases(hub, "Issuing", "Retiring")
            (new,) = (each for each in found if each["status"]["phase"] == "Issuing")
            await until_all(crowd, everybody, lambda one: len(trusted_by(one)) == 1, "all agents trust the new CA alone")
            third = [held(crowd, number) for number in everybody]
            assert len({issuer_of(one) for one in third}) == 1
            assert not {issuer_of(one) for one in third} & {issuer_of(one) for one in first}
            assert new["metadata"]["name"]
            after = await asyncio.to_thread(shown_by, hub)
            assert {issuer for issuer, _ in after.values()} == {issuer_of(one) for one in third}, "both doors show the new CA's"
            assert not set(after.values()) & set(before.values())
            await crowd.all_heard(asyncio.get_running_loop().time())
        assert crowd.lost == 0, crowd.why.most_common(5)
        assert all(tally.opened >= 3 for tally in crowd.use_counts.values()), "the first session, and one for each certificate"


async def kill_the_leader(replicas: Replicas) -> None:
    """Kills it in the middle of whatever it does, and starts it anew."""
    ((holder,),) = rows(replicas.database, "SELECT holder FROM leaders WHERE lock = 'hub'") or ((replicas[0].name,),)
    victim = next(each for each in replicas.all if each.name == holder)
    replicas.leave(victim)
    await victim.process.kill()
    await replicas.restart(victim)


def trusts_alone(replica: Replica, authority: str) -> bool:
    """Whether the administrator's file of a replica trusts that CA and no other."""
    trust = read_kubeconfig(replica.data / "admin.kubeconfig").cluster.certificate_authority
    return [parse_certificate(each).key_hash[:16] for each in split_bundle(trust)] == [authority]


@pytest.mark.postgres
@soak_only(AGENTS)  # in `make test`: tests/unit/hub/controllers/test_rotation.py, tests/unit/spoke/test_agent.py
async def test_agents_that_were_off_for_a_whole_change_of_ca_come_back_and_its_leader_is_killed_in_each_phase(
    bench: Bench, postgres_url: str
) -> None:
    """The bootstrap credential is revoked before: nothing but the recovery certificate can bring them back."""
    flags = ("--auto-approve=*", "--default-lease-duration=1s", "--ca-rotation-patience=2s", "--ca-key-place=database", *FAST)
    on, off = range(AGENTS - OFF), range(AGENTS - OFF, AGENTS)
    async with replicas_of(bench, postgres_url, *flags) as replicas:
        await replicas.start(2)
        crowd = await crowd_of(bench.admin, AGENTS)
        async with crowd.running():
            await crowd.all_heard()
        (credential,) = json.loads(await bench.hubctl("get", "bootstrap-credentials", "-o", "json"))["items"]
        old = [held(crowd, number) for number in off]
        async with crowd.running(on):
            await crowd.all_heard_of(on)
            await bench.hubctl("revoke", "bootstrap-credential", credential["metadata"]["name"])
            await bench.hubctl("ca", "rotate")
            for number, phase in enumerate(PHASES):

                async def has_come(reached: tuple[str, ...] = PHASES[number:]) -> bool:
                    return any(each["status"]["phase"] in reached for each in await authorities(bench))

                await until(has_come, what=f"a CA is {phase}, or further")
                await kill_the_leader(replicas)
            await until_phases(bench, "Issuing", "Retiring")
            await until_all(crowd, on, lambda one: len(trusted_by(one)) == 1, "those that were there trust the new CA alone")
            assert [held(crowd, number) for number in off] == old
        ((new,),) = rows(postgres_url, "SELECT id FROM authorities WHERE phase = 'Issuing'")
        assert len(rows(postgres_url, "SELECT id FROM authorities")) == 2, "one change makes one CA"
        ((sealed,),) = rows(postgres_url, "SELECT sealed_key FROM authorities WHERE phase = 'Issuing'")
        assert b"PRIVATE KEY" not in bytes(sealed)
        for replica in replicas.all:
            await until(partial(trusts_alone, replica, new), what=f"the admin's file of {replica.name} trusts the new CA")
            assert "ca" not in {path.stem for path in replica.data.glob("*.key")}
        async with crowd.running():
            await crowd.all_heard(asyncio.get_running_loop().time())
            await until_all(crowd, range(AGENTS), lambda one: len(trusted_by(one)) == 1, "all trust the new CA alone")
            assert len({issuer_of(held(crowd, number)) for number in range(AGENTS)}) == 1


@pytest.mark.postgres
async def test_replicas_that_only_read_their_keys_are_shown_how_to_get_the_next_ca(bench: Bench, postgres_url: str) -> None:
    async with replicas_of(bench, postgres_url, "--auto-approve=*", "--ca-rotation-patience=1s", *FAST) as replicas:
        (one,) = await replicas.start(1)
        rotate = ("hub", "ca", f"--data-dir={one.data}", "rotate")
        refused = await run(*rotate)
        assert (refused.returncode, "hub keys next" in refused.stderr) == (1, True), refused
        made = await run("hub", "keys", "next", str(bench.folder / "keys"))
        assert made.returncode == 0, made
        done = await run(*rotate)
        assert done.returncode == 0, done
        phases = partial(rows, postgres_url, "SELECT phase FROM authorities ORDER BY created_at")
        await until(lambda: phases()[1:] == [("Issuing",)], what="the CA that was brought issues")
        ((new,),) = rows(postgres_url, "SELECT id FROM authorities WHERE phase = 'Issuing'")
        assert (bench.folder / "keys" / f"ca-{new}.key").exists()
        assert (bench.folder / "keys" / "ca.key").exists(), "what is given is never touched"


async def test_connected_agents_move_and_all_else_of_a_compromised_ca_is_worth_nothing(bench: Bench) -> None:
    await bench.hub("--auto-approve=*", "--default-lease-duration=2s", "--beat-interval=1s")
    here, off = await asyncio.gather(bench.spoke("here"), bench.spoke("off"))
    await asyncio.gather(bench.available("here"), bench.available("off"))
    await off.kill()
    (bench.folder / "off.bootstrap").unlink()
    copied = bench.folder / "copied.kubeconfig"
    copied.write_bytes(bench.admin.read_bytes())

    async def alone() -> bool:
        output = await bench.hubctl("ca", "rotate", "--compromised", code=130)  # nobody says yes
        return "1 agents are connected" in output and "1 agents will need a new bootstrap credential:\n  off" in output

    await until(alone, what="the command says whom it strands")
    await bench.hubctl("ca", "rotate", "--compromised", "--yes")

    phases = partial(bench.stored, "SELECT phase FROM authorities ORDER BY phase")
    await until(lambda: phases() == [("Issuing",), ("Retired",)], what="the old CA is retired")
    await bench.available("here")
    assert here.running
    assert recorded(bench.data / "hub.db", "agent")["here"] == 2, "it has renewed, and did not register anew"
    refused = await run("hubctl", "--kubeconfig", str(copied), "get", "clusters")
    assert refused.returncode != 0, "a copy of an operator's kubeconfig is of the old CA"
    await off.start()

    async def is_left_out() -> bool:
        return "agent.trouble" in off.output and not is_available(await bench.cluster("off"))

    await until(is_left_out, what="the agent that was off does not come in")
    assert recorded(bench.data / "hub.db", "agent")["off"] == 1
