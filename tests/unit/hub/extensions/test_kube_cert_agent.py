"""The cert agent's controller, look by look: what it makes of the cluster, what it tells, and what it keeps."""

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from hub.api.credentialissuers import Strategy
from hub.extensions.kube_cert_agent import deployment as rules
from hub.extensions.kube_cert_agent.controller import KEY, LOOK_AGAIN, RESYNC, KubeCertAgent
from hub.extensions.kube_cert_agent.deployment import AgentDeploymentShape
from hub.extensions.kube_cert_agent.issuer import AuthorityProvider
from machinery import pki
from machinery.errors import ConflictError, ForbiddenError, InvalidError, MusterError, NotFoundError, UnavailableError
from machinery.runtime.clock import ManualClock
from tests.fakes.authority import pem_of, self_signed
from tests.fakes.host_cluster import SHAPE, BookInMemory, HostInMemory, info, manager, node, pod, printed

PRIVATE = ec.generate_private_key(ec.SECP256R1())
CERTIFICATE, PEM = self_signed(PRIVATE), pem_of(PRIVATE)
SIGNER = f"kubernetes/{pki.parse_certificate(CERTIFICATE).key_hash[:16]}"
GOOD = printed(CERTIFICATE, PEM)
AWAY = UnavailableError("away")
MANAGED = "and that is to be expected"


class Stage:
    def __init__(self, host: HostInMemory | None = None, shape: AgentDeploymentShape = SHAPE, **how: Any) -> None:
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


def deployed(shape: AgentDeploymentShape = SHAPE, **flags: Any) -> dict[str, Any]:
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


FETCH, INFO = "CouldNotFetchKey", "CouldNotGetClusterInfo"
LOOKING, ENSURE = "could not look for a controller-manager pod", "could not ensure the agent's Deployment"
NO_POD = "could not find a healthy agent pod"
GONE = NotFoundError("gone")
FOREIGN = pem_of(ec.generate_private_key(ec.SECP256R1()))


@dataclass(frozen=True)
class Row:
    """One look: the world, the reason and message that are reported, and what was written."""

    name: str
    message: str
    verbs: str = ""
    reason: str = FETCH
    loads: bool = False


def failing(**failures: MusterError) -> HostInMemory:
    return HostInMemory(failures=failures)


def having(**world: Any) -> HostInMemory:
    return HostInMemory(deployed=deployed(), **world)


def failing_hosts() -> Iterator[tuple[Row, HostInMemory]]:
    yield Row("managers cannot be listed", f"{LOOKING}: away"), failing(managers=AWAY)
    yield Row("no controller-manager pods", rf"\(0 candidates\); .*{MANAGED}"), HostInMemory(managing=[])
    yield Row("an unhealthy one", r"pod \(1 candidate\)$"), HostInMemory(managing=[manager(phase="Pending")])
    unhealthy = [manager("a", phase="Failed"), manager("b", phase="Pending")]
    yield Row("several unhealthy ones", r"pod \(2 candidates\)$"), HostInMemory(managing=unhealthy)
    two = [manager("a"), manager("b")]
    yield Row("nodes cannot be listed", f"{LOOKING}: away"), HostInMemory(managing=two, failures={"nodes": AWAY})
    yield Row("creation fails", f"{ENSURE}: away", "create", loads=True), failing(create=AWAY)
    yield Row("created, no agent pod yet", NO_POD + r" \(0 candidates\)", "create"), HostInMemory(agents_pods=[])
    neither = HostInMemory(agents_pods=[], failures={"create": AWAY})
    yield Row("creation fails and no pod: the Deployment is reported first", f"{ENSURE}: away", "create"), neither
    yield Row("old selector", NO_POD, "remove create"), HostInMemory(deployed=older(), agents_pods=[])
    kept = HostInMemory(deployed=older(), agents_pods=[], failures={"remove": ConflictError("changed")})
    yield Row("old selector, delete fails", f"{ENSURE}: changed", "remove"), kept
    removed = HostInMemory(deployed=older(), agents_pods=[], failures={"create": AWAY})
    yield Row("old selector, delete done, create fails", f"{ENSURE}: away", "remove create"), removed
    forbidden = HostInMemory(deployed=older(), failures={"remove": ForbiddenError("no")})
    yield Row("old selector but a pod of the right form", f"{ENSURE}: no", "remove", loads=True), forbidden
    larger = HostInMemory(deployed=unlike("spec", "replicas", value=3), failures={"replace": AWAY})
    yield Row("update fails", "away", "replace", loads=True), larger
    yield (
        Row("agents cannot be listed", "could not look for an agent pod: away"),
        having(failures={"agents": AWAY}),
    )
    yield Row("cluster-info missing", "address: gone", reason=INFO), having(failures={"cluster_info": GONE})
    both = failing(cluster_info=GONE, create=AWAY)
    yield Row("cluster-info missing and no Deployment", f"{ENSURE}: away", "create", INFO), both
    without = having(info={"data": {"kubeconf": ""}})
    yield Row("cluster-info without key", 'has no key "kubeconfig"', reason=INFO), without
    yield Row("cluster-info invalid", "holds no kubeconfig", reason=INFO), having(info=info("'not: yaml'"))
    empty = having(info=info("kind: Config\nclusters: []"))
    yield Row("cluster-info without clusters", "has no clusters", reason=INFO), empty
    dumb = having(failures={"printed": AWAY})
    yield Row("exec fails", "load the key from agent pod muster/agent: away"), dumb
    yield Row("invalid JSON", "printed no JSON object"), having(output=b"no")
    certificate, key = r"certificate \(tls.crt\) that is not base64", r"key \(tls.key\) that is not base64"
    yield Row("invalid base64 of the certificate", certificate), having(output=b'{"tls.crt": "%"}')
    yield Row("no certificate", certificate), having(output=b"{}")
    yield Row("invalid base64 of the key", key), having(output=b'{"tls.crt": "AA==", "tls.key": "%"}')
    yield Row("bogus certificate", "no certificate can be read"), having(output=printed(b"bogus", PEM))
    yield Row("a key of another", "no pair"), having(output=printed(CERTIFICATE, FOREIGN))


async def test_a_failure_to_fetch_the_key_is_reported_and_tried_again() -> None:
    for row, host in failing_hosts():
        stage = Stage(host)
        failure = await stage.look()
        assert isinstance(failure, MusterError), f"{row}: so it is tried again"
        assert re.search(row.message, failure.message), row
        assert (stage.told.status, stage.told.reason, stage.told.message) == ("Error", row.reason, failure.message), row
        assert (stage.told.server, stage.told.signer) == ("", ""), f"{row}: no frontend"
        assert " ".join(stage.verbs) == row.verbs, row
        assert (stage.provider.current is not None) is row.loads, row


async def test_a_fetched_key_is_told_with_the_cluster_that_it_opens() -> None:
    stage = Stage(having())
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
    set_by_hand = Stage(server="https://outside.example")
    await set_by_hand.look()
    assert set_by_hand.told.server == "https://outside.example"


async def test_a_missing_or_older_deployment_is_made_and_is_then_as_wanted() -> None:
    stage = Stage()
    assert await stage.look() == RESYNC
    assert await stage.look() == RESYNC
    assert stage.verbs == ["create"]
    assert rules.is_as_wanted(deployed(), rules.deployment(SHAPE, manager())), "a server's defaults are no difference"
    stage = Stage(HostInMemory(deployed=older()))
    await stage.look()
    verb, removed = stage.host.done[0]
    assert (verb, removed["metadata"]["uid"], removed["metadata"]["resourceVersion"]) == ("remove", "u", "5"), "the very one"


async def test_a_deployment_that_differs_is_updated_and_keeps_what_others_wrote() -> None:
    pod_spec = ("spec", "template", "spec")
    for existing in (
        unlike(*pod_spec, "hostNetwork"),
        unlike(*pod_spec, "nodeName", value="elsewhere"),
        unlike(*pod_spec, "priorityClassName", value="high"),
        unlike("spec", "template", "metadata", "labels", value={**SHAPE.pod_labels, "more": "than wanted"}),
        unlike(*pod_spec, "tolerations", value=[{"operator": "Exists"}, {"key": "x"}]),
        unlike("spec", "replicas", value=3),
        unlike("metadata", "labels", value={}),
    ):
        existing["metadata"]["annotations"] = {"theirs": "stays"}
        stage = Stage(HostInMemory(deployed=existing))
        assert await stage.look() == RESYNC
        assert stage.verbs == ["replace"], existing
        [(_, written)] = stage.host.done
        assert written["metadata"]["resourceVersion"] == "5", "guarded"
        assert written["metadata"]["annotations"] == {"theirs": "stays"}
        assert existing["metadata"]["labels"].items() | SHAPE.labels.items() == written["metadata"]["labels"].items()
        assert written["spec"] == rules.deployment(SHAPE, manager())["spec"], existing


OWNER = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "hub", "uid": "now"}


async def test_the_deployment_belongs_to_what_the_hub_belongs_to_and_keeps_its_other_owners() -> None:
    stage = Stage(HostInMemory(owned_by=OWNER))
    await stage.look()
    await stage.look()
    [(verb, written)] = stage.host.done
    assert (verb, written["metadata"]["ownerReferences"]) == ("create", [OWNER])
    theirs = {**OWNER, "name": "theirs"}
    for owners, others in (([], []), ([{**OWNER, "uid": "of a StatefulSet that is no more"}], []), ([theirs], [theirs])):
        existing = deployed()
        existing["metadata"]["ownerReferences"] = owners
        stage = Stage(HostInMemory(deployed=existing, owned_by=OWNER))
        await stage.look()
        [(verb, written)] = stage.host.done
        assert (verb, written["metadata"]["ownerReferences"]) == ("replace", [*others, OWNER]), owners
        written["metadata"]["ownerReferences"][-1] = {**OWNER, "blockOwnerDeletion": False}
        await stage.look()
        assert stage.verbs == ["replace"], "what a server adds is no difference"
    existing["metadata"]["ownerReferences"] = [OWNER]
    stage = Stage(HostInMemory(deployed=existing))
    await stage.look()
    assert stage.host.done == [], "a hub that belongs to nothing takes no owner away"


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
    important = AgentDeploymentShape(
        SHAPE.namespace, SHAPE.name, SHAPE.image, SHAPE.service_account, SHAPE.labels, priority_class="high"
    )
    stage = Stage(HostInMemory(deployed=deployed()), important)
    await stage.look()
    assert stage.host.deployed is not None
    assert stage.host.deployed["spec"]["template"]["spec"]["priorityClassName"] == "high"
    again = Stage(stage.host)
    await again.look()
    assert again.host.deployed is not None
    assert again.host.deployed["spec"]["template"]["spec"]["priorityClassName"] == ""
    assert stage.verbs == ["replace", "replace"]


async def test_a_key_is_fetched_once_in_a_quarter_of_an_hour_and_again_from_another_pod() -> None:
    stage = Stage(having(failures={"printed": AWAY}))
    await stage.look()
    stage.host.failures = {}
    assert await stage.look() == RESYNC
    assert (stage.host.executed, stage.provider.certificate) == (["agent"] * 2, CERTIFICATE), "a failure is not kept"
    stage.host.executed.clear()
    stage.clock.advance(timedelta(minutes=14, seconds=59))
    await stage.look()
    assert stage.host.executed == [], "cached"
    stage.clock.advance(timedelta(seconds=1))
    await stage.look()
    assert stage.host.executed == ["agent"], "the cache has ended"
    stage.host.agents_pods = [pod("agent-2", labels=SHAPE.pod_labels)]
    await stage.look()
    assert stage.host.executed == ["agent", "agent-2"]


async def test_another_key_follows_a_restart_and_the_last_one_stays_whatever_fails_later() -> None:
    stage = Stage(having())
    await stage.look()
    stage.host.managing[0]["status"]["containerStatuses"] = [{"restartCount": 1}]
    other = ec.generate_private_key(ec.SECP256R1())
    certificate = self_signed(other)
    stage.host.output = printed(certificate, pem_of(other))
    await stage.look()
    assert stage.provider.certificate == certificate
    stage.host.deployed = older()
    stage.host.failures = {"remove": AWAY}
    assert isinstance(await stage.look(), UnavailableError)
    stage.clock.advance(timedelta(minutes=16))
    stage.host.output = printed(b"bogus", b"bogus")
    assert isinstance(await stage.look(), MusterError)
    stage.host.managing = []
    assert isinstance(await stage.look(), MusterError)
    assert stage.provider.certificate == certificate


async def test_a_credential_issuer_that_cannot_be_read_or_written_is_tried_again() -> None:
    stage = Stage()
    stage.book.unreadable = AWAY
    assert await stage.look() is AWAY
    assert (stage.host.done, stage.book.told, stage.host.executed) == ([], [], [])
    stage = Stage(having())
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
    """A write that is refused must not come before the cache is filled."""
    for existing, again in ((deployed(), RESYNC), (older(), LOOK_AGAIN)):
        stage = Stage(HostInMemory(deployed=existing))
        stage.book.leading = False
        assert await stage.look() == again
        assert (stage.provider.certificate, stage.host.done, stage.book.told) == (CERTIFICATE, [], [])
    stage = Stage(HostInMemory(agents_pods=[]))
    stage.book.leading = False
    assert await stage.look() == LOOK_AGAIN, "it waits quietly for the leader's pod"
    stage.host.deployed = deployed()
    assert isinstance(await stage.look(), NotFoundError), "and reports what is amiss otherwise"


async def test_the_agent_goes_where_the_newest_running_controller_manager_on_a_usable_node_is() -> None:
    two = [manager("old", made=1, node="a"), manager("new", made=2, node="b")]
    closed_a, closed_b = node("a", takes_pods=False), node("b", takes_pods=False)
    table: dict[str, tuple[list[Any], list[Any], str]] = {
        "newest": (two, [node("a"), node("b")], "b"),
        "newest on a node that takes none": (two, [node("a"), closed_b], "a"),
        "all such": (two, [closed_a, closed_b], "b"),
        "no node names": ([manager("old", made=1), manager("new", made=2)], [node("a")], ""),
        "node without a name": ([two[0], manager("new", made=2)], [node("a"), {"metadata": {}}], "a"),
        "tie": ([manager("y", node="y"), manager("x", node="x")], [node("x"), node("y")], "x"),
        "runs": ([manager("old", node="a"), manager("new", made=9, node="b", phase="Pending")], [], "a"),
    }
    chosen = {}
    for name, (pods, nodes, _) in table.items():
        stage = Stage(HostInMemory(managing=pods, there=nodes))
        assert await stage.look() == RESYNC, name
        [(_, made)] = stage.host.done
        chosen[name] = made["spec"]["template"]["spec"]["nodeName"]
    assert chosen == {name: expected for name, (_, _, expected) in table.items()}
    single = Stage(HostInMemory(failures={"nodes": ForbiddenError("no")}))
    assert await single.look() == RESYNC, "a single one needs no look at nodes"


async def test_what_is_told_of_the_controller_holds_no_secret() -> None:
    stage = Stage()
    await stage.look()
    body = PEM.decode().splitlines()[1]
    assert stage.agent.snapshot() == {"reason": "FetchedKey", "signer": SIGNER, "keys fetched": 1}
    stage.host.output = printed(CERTIFICATE, PEM)[:-9]
    stage.clock.advance(timedelta(minutes=16))
    failure = await stage.look()
    assert body not in str(failure) + repr(failure) + str(stage.book.told)
