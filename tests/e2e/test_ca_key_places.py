"""A change of CA among replicas: its key sealed in their database, or brought by an operator; leaders that are killed."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from machinery import pki
from machinery.kube.client import KubeClient
from machinery.kubeconfig import read_kubeconfig
from tests.e2e import databases
from tests.e2e.processes import Bench, until
from tests.e2e.replicas import Replica, Replicas, replicas_of
from tests.trials import SOAKING, soaked

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]

PHASES = ("Distributing", "Outgoing", "Retiring")
KILLED_IN = PHASES if SOAKING else PHASES[1:2]
CAS = "/apis/hub.open-cluster-management.io/v1alpha1/certificateauthorities"
ELECTION = (
    "--leader-elect-lease-duration=3s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=500ms",
    "--leader-elect-poll-period=250ms",
)
FAST = ("--auto-approve=*", "--default-lease-duration=2s", "--beat-interval=1s", "--ca-rotation-patience=4s", *ELECTION)


async def order(client: KubeClient, action: str, name: str) -> None:
    kind = {"apiVersion": "hub.open-cluster-management.io/v1alpha1", "kind": "CertificateAuthorityAction"}
    await client.create(f"{CAS}/{name}/{action}", kind)


async def kill_the_leader(replicas: Replicas, rows: Callable[[str], list[tuple[Any, ...]]]) -> None:
    """Kills it in the middle of whatever it does, and starts it anew."""
    ((holder,),) = rows("SELECT holder FROM leaders WHERE lock = 'hub'") or ((replicas[0].name,),)
    victim = next(each for each in replicas.all if each.name == holder)
    await victim.process.kill()
    await victim.process.start()


@soaked(len(PHASES))
async def test_a_change_of_ca_ends_although_the_leader_is_killed_in_each_phase(bench: Bench, postgres_url: str) -> None:
    rows = partial(databases.rows, postgres_url)
    async with replicas_of(bench, postgres_url, "--ca-key-place=database", *FAST) as replicas:
        one, other = await replicas.start(2)
        spoke = await bench.spoke("edge")
        await bench.available("edge")
        before = read_kubeconfig(one.data / "admin.kubeconfig").cluster.certificate_authority
        ((old,),) = rows("SELECT id FROM authorities")
        async with await one.client() as client:
            await order(client, "rotate", old)

        for phase in PHASES:

            async def has_come(reached: tuple[str, ...] = PHASES[PHASES.index(phase) :]) -> bool:
                return any(found in reached for (found,) in rows("SELECT phase FROM authorities"))

            await until(has_come, what=f"a CA is {phase}", within=60)
            if phase in KILLED_IN:
                await kill_the_leader(replicas, rows)
        for replica in (one, other):
            await replicas.ready(replica)

        ((new,),) = rows("SELECT id FROM authorities WHERE phase = 'Issuing'")
        assert len(rows("SELECT id FROM authorities")) == 2, "one change makes one CA"
        assert new != old
        holds = rows("SELECT signed_by FROM certificates WHERE purpose = 'agent' ORDER BY issued_at DESC LIMIT 1")
        assert holds == [(f"hub/{new}",)], "the agent has moved"
        await bench.available("edge")
        assert spoke.running
        for replica in (one, other):

            async def trusts_it(replica: Replica = replica) -> bool:
                trust = read_kubeconfig(replica.data / "admin.kubeconfig").cluster.certificate_authority
                return [pki.parse_certificate(each).key_hash[:16] for each in pki.split_bundle(trust)] == [new]

            await until(trusts_it, what=f"the administrator's file of {replica.name} trusts the new CA alone")
            assert before != read_kubeconfig(replica.data / "admin.kubeconfig").cluster.certificate_authority
        sealed = rows("SELECT sealed_key FROM authorities WHERE phase = 'Issuing'")[0][0]
        assert b"PRIVATE KEY" not in bytes(sealed)
        assert not list(one.data.glob("*.key")) or "ca" not in {path.stem for path in one.data.glob("*.key")}


async def test_replicas_that_only_read_their_keys_are_told_how_to_get_the_next_ca(bench: Bench, postgres_url: str) -> None:
    rows = partial(databases.rows, postgres_url)
    async with replicas_of(bench, postgres_url, *FAST) as replicas:
        (one,) = await replicas.start(1)
        refused = await hubctl(bench, one.data, "rotate")
        assert refused[0] == 1
        assert "hub keys next" in refused[1]
        made = await program(bench, "hub", "keys", "next", str(bench.folder / "keys"))
        assert made[0] == 0, made[1]
        done = await hubctl(bench, one.data, "rotate")
        assert done[0] == 0, done[1]

        async def issues() -> bool:
            return [phase for (phase,) in rows("SELECT phase FROM authorities ORDER BY created_at")][1:] == ["Issuing"]

        await until(issues, what="the CA that was brought issues", within=30)
        ((new,),) = rows("SELECT id FROM authorities WHERE phase = 'Issuing'")
        assert (bench.folder / "keys" / f"ca-{new}.key").exists()
        assert (bench.folder / "keys" / "ca.key").exists(), "what is given is never touched"


async def hubctl(bench: Bench, data: Path, *arguments: str) -> tuple[int, str]:
    return await program(bench, "hub", "ca", f"--data-dir={data}", *arguments)


async def program(bench: Bench, *arguments: str) -> tuple[int, str]:
    """Runs one of ours to its end."""
    one = bench.program(f"{arguments[1]}-{len(bench.programs)}", *arguments)
    await one.start()
    return await one.ended(60), one.output
