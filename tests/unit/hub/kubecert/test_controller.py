"""The cert agent's controller, look by look: what it makes of the cluster, what it tells, and what it keeps."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from hub.domain.credentialissuer import Strategy
from hub.issuer import AuthorityProvider
from hub.kubecert import deployment as rules
from hub.kubecert.controller import KEY, LOOK_AGAIN, RESYNC, KubeCertAgent
from hub.kubecert.deployment import Shape
from machinery import pki
from machinery.clock import ManualClock
from machinery.errors import ConflictError, ForbiddenError, InvalidError, MusterError, NotFoundError, UnavailableError
from tests.fakes.foreign_ca import pem_of, self_signed
from tests.fakes.host_cluster import SHAPE, BookInMemory, HostInMemory, info, manager, node, pod, printed

PRIVATE = ec.generate_private_key(ec.SECP256R1())
CERTIFICATE, PEM = self_signed(PRIVATE), pem_of(PRIVATE)
SIGNER = f"kubernetes/{pki.parse_certificate(CERTIFICATE).key_hash[:16]}"
GOOD = printed(CERTIFICATE, PEM)
AWAY = UnavailableError("away")
MANAGED = "and that is to be expected"


class Stage:
    """A controller among fakes."""

    def __init__(self, host: HostInMemory | None = None, shape: Shape = SHAPE, **how: Any) -> None:
        self.host = host or HostInMemory()
        self.host.output = self.host.output or GOOD
        self.provider, self.book, self.clock = AuthorityProvider(), BookInMemory(), ManualClock()
        self.agent = KubeCertAgent(self.host, shape, self.provider, self.book, clock=self.clock, **how)

    async def look(self) -> MusterError | timedelta | None:
        try:
            return await self.agent.reconcile(KEY)
        except MusterError as error:
            return error

    @property
    def told(self) -> Strategy:
        return self.book.told[-1]

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.host.done]


def deployed(shape: Shape = SHAPE, **flags: Any) -> dict[str, Any]:
    """As a server has it: with defaults filled in."""
    made = rules.deployment(shape, manager(**flags))
    made["metadata"] |= {"uid": "u", "resourceVersion": "5", "labels": {**made["metadata"]["labels"], "theirs": "stays"}}
    made["spec"]["strategy"] = {"type": "RollingUpdate"}
    made["spec"]["template"]["spec"] |= {"dnsPolicy": "ClusterFirst", "restartPolicy": "Always"}
    del made["spec"]["template"]["spec"]["priorityClassName"]  # an empty one is not kept
    return made


def older() -> dict[str, Any]:
    """Made for pods of another form."""
    made = deployed()
    made["spec"]["selector"]["matchLabels"] = {f"kube-cert-agent.muster/{SHAPE.name}": "v0"}
    return made


def unlike(*path: str, value: Any = None) -> dict[str, Any]:
    made = deployed()
    part = made
    for step in path[:-1]:
        part = part[step]
    if value is None:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return made


@dataclass(frozen=True)
class Row:
    """One look: the world, what is said of it, and what was written."""

    name: str
    host: Callable[[], HostInMemory]
    reason: str
    message: str
    verbs: tuple[str, ...] = ()
    loads: bool = False


def of(**world: Any) -> Callable[[], HostInMemory]:
    return lambda: HostInMemory(**{name: value() if callable(value) else value for name, value in world.items()})


FETCH, INFO = "CouldNotFetchKey", "CouldNotGetClusterInfo"
LOOKING = "could not look for a controller-manager pod"
ROWS = (
    Row("managers cannot be listed", of(failures={"managers": AWAY}), FETCH, f"{LOOKING}: away"),
    Row("no controller-manager pods", of(managing=[]), FETCH, rf"\(0 candidates\); .*{MANAGED}"),
    Row("only unhealthy ones", of(managing=lambda: [manager(phase="Pending")]), FETCH, r"pod \(1 candidate\)$"),
    Row(
        "several unhealthy ones",
        of(managing=lambda: [manager("a", phase="Failed"), manager("b", phase="Pending")]),
        FETCH,
        r"pod \(2 candidates\)$",
    ),
    Row(
        "nodes cannot be listed",
        of(managing=lambda: [manager("a"), manager("b")], failures={"nodes": AWAY}),
        FETCH,
        f"{LOOKING}: away",
    ),
    Row(
        "creation fails",
        of(failures={"create": AWAY}),
        FETCH,
        "could not ensure the agent's Deployment: away",
        ("create",),
        loads=True,
    ),
    Row(
        "created, no agent pod yet",
        of(agents_pods=[]),
        FETCH,
        r"could not find a healthy agent pod \(0 candidates\)",
        ("create",),
    ),
    Row(
        "creation fails and no pod: the Deployment is told first",
        of(agents_pods=[], failures={"create": AWAY}),
        FETCH,
        "could not ensure the agent's Deployment: away",
        ("create",),
    ),
    Row(
        "old selector",
        of(deployed=older, agents_pods=[]),
        FETCH,
        "could not find a healthy agent pod",
        ("remove", "create"),
    ),
    Row(
        "old selector, delete fails",
        of(deployed=older, agents_pods=[], failures={"remove": ConflictError("changed")}),
        FETCH,
        "could not ensure the agent's Deployment: changed",
        ("remove",),
    ),
    Row(
        "old selector, delete done, create fails",
        of(deployed=older, agents_pods=[], failures={"create": AWAY}),
        FETCH,
        "could not ensure the agent's Deployment: away",
        ("remove", "create"),
    ),
    Row(
        "old selector but a pod of the right form: the key is loaded and the Deployment told",
        of(deployed=older, failures={"remove": ForbiddenError("no")}),
        FETCH,
        "could not ensure the agent's Deployment: no",
        ("remove",),
        loads=True,
    ),
    Row(
        "update fails",
        of(deployed=lambda: unlike("spec", "replicas", value=3), failures={"replace": AWAY}),
        FETCH,
        "away",
        ("replace",),
        loads=True,
    ),
    Row(
        "agents cannot be listed",
        of(deployed=deployed, failures={"agents": AWAY}),
        FETCH,
        "could not look for an agent pod: away",
    ),
    Row("cluster-info missing", of(deployed=deployed, failures={"cluster_info": NotFoundError("gone")}), INFO, "address: gone"),
    Row(
        "cluster-info missing and no Deployment: that is told",
        of(failures={"cluster_info": NotFoundError("gone"), "create": AWAY}),
        INFO,
        "could not ensure the agent's Deployment: away",
        ("create",),
    ),
    Row("cluster-info without key", of(deployed=deployed, info={"data": {"kubeconf": ""}}), INFO, 'has no key "kubeconfig"'),
    Row("cluster-info invalid", of(deployed=deployed, info=lambda: info("'not: yaml'")), INFO, "holds no kubeconfig"),
    Row(
        "cluster-info without clusters",
        of(deployed=deployed, info=lambda: info("kind: Config\nclusters: []")),
        INFO,
        "has no clusters",
    ),
    Row(
        "exec fails", of(deployed=deployed, failures={"printed": AWAY}), FETCH, "load the key from agent pod muster/agent: away"
    ),
    Row("invalid JSON", of(deployed=deployed, output=b"no"), FETCH, "printed no JSON object"),
    Row(
        "invalid base64 of the certificate",
        of(deployed=deployed, output=b'{"tls.crt": "%"}'),
        FETCH,
        r"certificate \(tls.crt\) that is not base64",
    ),
    Row("no certificate", of(deployed=deployed, output=b"{}"), FETCH, r"certificate \(tls.crt\) that is not base64"),
    Row(
        "invalid base64 of the key",
        of(deployed=deployed, output=b'{"tls.crt": "AA==", "tls.key": "%"}'),
        FETCH,
        r"key \(tls.key\) that is not base64",
    ),
    Row("bogus certificate", of(deployed=deployed, output=printed(b"bogus", PEM)), FETCH, "no certificate can be read"),
    Row(
        "a key of another",
        of(deployed=deployed, output=printed(CERTIFICATE, pem_of(ec.generate_private_key(ec.SECP256R1())))),
        FETCH,
        "no pair",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
async def test_what_keeps_a_key_from_being_fetched_is_told_and_tried_again(row: Row) -> None:
    stage = Stage(row.host())
    failure = await stage.look()
    assert isinstance(failure, MusterError), "so it is tried again"
    with pytest.raises(MusterError, match=row.message):
        raise failure
    assert (stage.told.status, stage.told.reason, stage.told.message) == ("Error", row.reason, failure.message)
    assert (stage.told.server, stage.told.signer) == ("", ""), "no frontend"
    assert tuple(stage.verbs) == row.verbs
    assert (stage.provider.current is not None) is row.loads


async def test_a_fetched_key_is_told_with_the_cluster_that_it_opens() -> None:
    stage = Stage(HostInMemory(deployed=deployed()))
    assert await stage.look() == RESYNC
    assert stage.told == Strategy(
        "KubeClusterSigningCertificate",
        "Success",
        "FetchedKey",
        "key was fetched successfully",
        server="https://kube.example:6443",
        authority=base64.b64encode(b"CA").decode(),
        signer=SIGNER,
    )
    assert (stage.verbs, stage.provider.certificate) == ([], CERTIFICATE)


async def test_the_server_of_a_setting_takes_the_place_of_the_clusters() -> None:
    stage = Stage(server="https://outside.example")
    await stage.look()
    assert stage.told.server == "https://outside.example"


async def test_a_missing_deployment_is_made_and_is_then_as_wanted() -> None:
    stage = Stage()
    assert await stage.look() == RESYNC
    assert await stage.look() == RESYNC
    assert stage.verbs == ["create"]
    assert rules.is_as_wanted(deployed(), rules.deployment(SHAPE, manager())), "a server's defaults are no difference"


@pytest.mark.parametrize(
    "existing",
    [
        unlike("spec", "template", "spec", "hostNetwork"),
        unlike("spec", "template", "spec", "nodeName", value="elsewhere"),
        unlike("spec", "template", "spec", "priorityClassName", value="high"),
        unlike("spec", "template", "metadata", "labels", value={**SHAPE.pod_labels, "more": "than wanted"}),
        unlike("spec", "template", "spec", "tolerations", value=[{"operator": "Exists"}, {"key": "x"}]),
        unlike("spec", "replicas", value=3),
        unlike("metadata", "labels", value={}),
    ],
    ids=[
        "host network missing",
        "other node",
        "priority to be reset",
        "labels too many",
        "tolerations too many",
        "replicas",
        "labels",
    ],
)
async def test_a_deployment_that_differs_is_updated_and_keeps_what_others_wrote(existing: dict[str, Any]) -> None:
    existing["metadata"]["annotations"] = {"theirs": "stays"}
    stage = Stage(HostInMemory(deployed=existing))
    assert await stage.look() == RESYNC
    [(verb, written)] = stage.host.done
    assert verb == "replace"
    assert written["metadata"]["resourceVersion"] == "5", "guarded"
    assert written["metadata"]["annotations"] == {"theirs": "stays"}
    assert existing["metadata"]["labels"].items() | SHAPE.labels.items() == written["metadata"]["labels"].items()
    assert written["spec"] == rules.deployment(SHAPE, manager())["spec"]


OWNER = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "hub", "uid": "now"}


async def test_the_deployment_belongs_to_what_the_hub_belongs_to() -> None:
    stage = Stage(HostInMemory(owned_by=OWNER))
    await stage.look()
    await stage.look()
    [(verb, written)] = stage.host.done
    assert (verb, written["metadata"]["ownerReferences"]) == ("create", [OWNER])


@pytest.mark.parametrize(
    "owners",
    [[], [{**OWNER, "uid": "of a StatefulSet that is no more"}], [{**OWNER, "name": "theirs"}]],
    ids=["none", "an earlier one of ours", "another's"],
)
async def test_a_deployment_without_our_owner_gets_it_once_and_keeps_others(owners: list[dict[str, str]]) -> None:
    existing = deployed()
    existing["metadata"]["ownerReferences"] = owners
    stage = Stage(HostInMemory(deployed=existing, owned_by=OWNER))
    await stage.look()
    [(verb, written)] = stage.host.done
    others = [each for each in owners if each["name"] != "hub"]
    assert (verb, written["metadata"]["ownerReferences"]) == ("replace", [*others, OWNER])
    written["metadata"]["ownerReferences"][-1] = {**OWNER, "blockOwnerDeletion": False}
    await stage.look()
    assert stage.verbs == ["replace"], "what a server adds is no difference"


async def test_a_hub_that_belongs_to_nothing_takes_no_owner_away() -> None:
    existing = deployed()
    existing["metadata"]["ownerReferences"] = [OWNER]
    stage = Stage(HostInMemory(deployed=existing))
    await stage.look()
    assert stage.host.done == []


async def test_an_owner_that_cannot_be_asked_for_now_is_asked_for_again() -> None:
    stage = Stage(HostInMemory(owned_by=OWNER, failures={"owner": UnavailableError("away")}))
    failed = await stage.look()
    assert isinstance(failed, MusterError)
    assert "could not ensure the agent's Deployment" in failed.message
    assert stage.host.done == []
    stage.host.failures.clear()
    await stage.look()
    assert stage.verbs == ["create"]


async def test_a_priority_class_is_written_and_taken_away_again() -> None:
    important = Shape(SHAPE.namespace, SHAPE.name, SHAPE.image, SHAPE.service_account, SHAPE.labels, priority_class="high")
    stage = Stage(HostInMemory(deployed=deployed()), important)
    await stage.look()
    assert stage.host.deployed is not None
    assert stage.host.deployed["spec"]["template"]["spec"]["priorityClassName"] == "high"
    again = Stage(stage.host)
    await again.look()
    assert again.host.deployed is not None
    assert again.host.deployed["spec"]["template"]["spec"]["priorityClassName"] == ""
    assert stage.verbs == ["replace", "replace"]


async def test_what_is_deleted_is_the_very_deployment_that_was_read() -> None:
    stage = Stage(HostInMemory(deployed=older()))
    await stage.look()
    verb, removed = stage.host.done[0]
    assert (verb, removed["metadata"]["uid"], removed["metadata"]["resourceVersion"]) == ("remove", "u", "5")


async def test_a_key_is_fetched_once_in_a_quarter_of_an_hour_and_again_from_another_pod() -> None:
    stage = Stage(HostInMemory(deployed=deployed()))
    await stage.look()
    stage.clock.advance(timedelta(minutes=14, seconds=59))
    await stage.look()
    assert stage.host.executed == ["agent"], "cached"
    stage.clock.advance(timedelta(seconds=1))
    await stage.look()
    assert stage.host.executed == ["agent"] * 2, "the cache has ended"
    stage.host.agents_pods = [pod("agent-2", labels=SHAPE.pod_labels)]
    await stage.look()
    assert stage.host.executed == ["agent", "agent", "agent-2"]


async def test_a_controller_manager_that_was_started_anew_may_have_another_key() -> None:
    stage = Stage(HostInMemory(deployed=deployed()))
    await stage.look()
    stage.host.managing[0]["status"]["containerStatuses"] = [{"restartCount": 1}]
    other = ec.generate_private_key(ec.SECP256R1())
    stage.host.output = printed(self_signed(other), pem_of(other))
    await stage.look()
    assert stage.provider.certificate == self_signed_of(stage)


def self_signed_of(stage: Stage) -> bytes:
    """The certificate that the agent printed last."""
    import json  # noqa: PLC0415 - here alone

    return base64.b64decode(json.loads(stage.host.output)["tls.crt"])


async def test_a_key_that_was_loaded_stays_whatever_fails_later() -> None:
    stage = Stage(HostInMemory(deployed=deployed()))
    await stage.look()
    stage.host.deployed = older()
    stage.host.failures = {"remove": AWAY}
    assert isinstance(await stage.look(), UnavailableError)
    stage.clock.advance(timedelta(minutes=16))
    stage.host.output = printed(b"bogus", b"bogus")
    assert isinstance(await stage.look(), MusterError)
    stage.host.managing = []
    assert isinstance(await stage.look(), MusterError)
    assert stage.provider.certificate == CERTIFICATE


async def test_a_failed_fetch_is_not_kept_as_one_that_succeeded() -> None:
    stage = Stage(HostInMemory(deployed=deployed(), failures={"printed": AWAY}))
    await stage.look()
    stage.host.failures = {}
    assert await stage.look() == RESYNC
    assert (stage.host.executed, stage.provider.certificate) == (["agent"] * 2, CERTIFICATE)


async def test_an_issuer_that_cannot_be_read_ends_the_look_before_it_begins() -> None:
    stage = Stage()
    stage.book.unreadable = AWAY
    assert await stage.look() is AWAY
    assert (stage.host.done, stage.book.told, stage.host.executed) == ([], [], [])


async def test_what_cannot_be_told_is_tried_again_together_with_why_it_was_to_be_told() -> None:
    stage = Stage(HostInMemory(deployed=deployed()))
    stage.book.failure = ConflictError("changed")
    untold = await stage.look()
    assert isinstance(untold, ConflictError)
    assert untold.message == "could not tell it on the CredentialIssuer: changed"
    stage.host.failures = {"printed": InvalidError("no")}
    stage.clock.advance(timedelta(minutes=16))
    both = await stage.look()
    assert isinstance(both, UnavailableError)
    assert "agent pod muster/agent: no, could not tell it" in both.message


async def test_a_follower_loads_the_key_from_the_leaders_pod_and_writes_nothing() -> None:
    stage = Stage(HostInMemory(deployed=deployed()))
    stage.book.leading = False
    assert await stage.look() == RESYNC
    assert (stage.provider.certificate, stage.host.done, stage.book.told) == (CERTIFICATE, [], [])


async def test_a_follower_loads_the_key_although_the_deployment_is_the_leaders_to_mend() -> None:
    """A write that is refused must not come before the cache is filled."""
    stage = Stage(HostInMemory(deployed=older()))
    stage.book.leading = False
    assert await stage.look() == LOOK_AGAIN
    assert (stage.provider.certificate, stage.host.done, stage.book.told) == (CERTIFICATE, [], [])


async def test_a_follower_waits_quietly_for_the_leaders_pod_and_tells_what_is_amiss_otherwise() -> None:
    stage = Stage(HostInMemory(agents_pods=[]))
    stage.book.leading = False
    assert await stage.look() == LOOK_AGAIN
    stage.host.deployed = deployed()
    assert isinstance(await stage.look(), NotFoundError)


@pytest.mark.parametrize(
    ("pods", "nodes", "chosen"),
    [
        ([manager("old", made=1, node="a"), manager("new", made=2, node="b")], [node("a"), node("b")], "b"),
        ([manager("old", made=1, node="a"), manager("new", made=2, node="b")], [node("a"), node("b", takes_pods=False)], "a"),
        (
            [manager("old", made=1, node="a"), manager("new", made=2, node="b")],
            [node("a", takes_pods=False), node("b", takes_pods=False)],
            "b",
        ),
        ([manager("old", made=1), manager("new", made=2)], [node("a")], ""),
        ([manager("old", made=1, node="a"), manager("new", made=2)], [node("a"), {"metadata": {}}], "a"),
        ([manager("y", node="y"), manager("x", node="x")], [node("x"), node("y")], "x"),
        ([manager("old", node="a"), manager("new", made=9, node="b", phase="Pending")], [], "a"),
    ],
    ids=["newest", "newest on a node that takes none", "all such", "no node names", "node without a name", "tie", "runs"],
)
async def test_the_agent_goes_where_the_right_controller_manager_is(pods: list[Any], nodes: list[Any], chosen: str) -> None:
    stage = Stage(HostInMemory(managing=pods, there=nodes))
    assert await stage.look() == RESYNC
    [(_, made)] = stage.host.done
    assert made["spec"]["template"]["spec"]["nodeName"] == chosen


async def test_a_single_controller_manager_needs_no_look_at_nodes() -> None:
    stage = Stage(HostInMemory(failures={"nodes": ForbiddenError("no")}))
    assert await stage.look() == RESYNC


async def test_what_is_told_of_the_controller_holds_no_secret() -> None:
    stage = Stage()
    await stage.look()
    body = PEM.decode().splitlines()[1]
    assert stage.agent.snapshot() == {"reason": "FetchedKey", "signer": SIGNER, "keys fetched": 1}
    stage.host.output = printed(CERTIFICATE, PEM)[:-9]
    stage.clock.advance(timedelta(minutes=16))
    failure = await stage.look()
    assert body not in str(failure) + repr(failure) + str(stage.book.told)
