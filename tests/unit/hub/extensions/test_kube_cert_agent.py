"""The cert agent: its controller look by look, its Deployment part by part, and its program."""

import base64
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec

from hub.api.credentialissuers import Strategy
from hub.extensions.kube_cert_agent import deployment as rules
from hub.extensions.kube_cert_agent.__main__ import main
from hub.extensions.kube_cert_agent.authority import KubernetesIssuer
from hub.extensions.kube_cert_agent.controller import KEY, LOOK_AGAIN, RESYNC, KubeCertAgent, OutdatedPods
from hub.extensions.kube_cert_agent.deployment import AgentDeploymentShape
from machinery import pki
from machinery.errors import ConflictError, ForbiddenError, InvalidError, MusterError, NotFoundError, UnavailableError
from machinery.runtime.clock import ManualClock
from tests.checks import CASE_FILES, check_refusal, check_refusal_of, check_results, present
from tests.fakes.authority import pem_of, self_signed
from tests.fakes.host_cluster import SHAPE, HostInMemory, StatusInMemory, info, manager, node, pod, printed

PRIVATE = ec.generate_private_key(ec.SECP256R1())
CERTIFICATE, PEM = self_signed(PRIVATE), pem_of(PRIVATE)
SIGNER = f"kubernetes/{pki.parse_certificate(CERTIFICATE).key_hash[:16]}"
GOOD = printed(CERTIFICATE, PEM)
AWAY = UnavailableError("away")
MANAGED = "this is expected on a managed cluster"
FETCH, INFO = "CouldNotFetchKey", "CouldNotGetClusterInfo"
LOOKING, ENSURE = "could not look for a controller-manager pod", "could not ensure the agent's Deployment"
NO_POD = "could not find a healthy agent pod"
GONE = NotFoundError("gone")
FOREIGN = pem_of(ec.generate_private_key(ec.SECP256R1()))
OWNER = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "hub", "uid": "now"}
CA, CLIENT = "--cluster-signing-", "--cluster-signing-kube-apiserver-client-"
A, B, DEFAULTS = ("/a.crt", "/a.key"), ("/b.crt", "/b.key"), ("/etc/kubernetes/ca/ca.pem", "/etc/kubernetes/ca/ca.key")
OF_A = (f"{CA}cert-file=/a.crt", f"{CA}key-file=/a.key")
OF_B = (f"{CLIENT}cert-file=/b.crt", f"{CLIENT}key-file=/b.key")
LABEL = "kube-cert-agent.muster/hub-kube-cert-agent"
OLD = {**SHAPE.labels, LABEL: "v0"}


class Stage:
    def __init__(self, host: HostInMemory | None = None, shape: AgentDeploymentShape = SHAPE, **how: Any) -> None:
        self.host = host or HostInMemory()
        self.host.output = self.host.output or GOOD
        self.issuer, self.status, self.clock = KubernetesIssuer(), StatusInMemory(), ManualClock()
        self.agent = KubeCertAgent(self.host, shape, self.issuer, self.status, clock=self.clock, **how)

    async def look(self) -> MusterError | timedelta | None:
        try:
            return await self.agent.reconcile(KEY)
        except MusterError as error:
            return error

    @property
    def strategy(self) -> Strategy:
        return self.status.written[-1]

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
    yield (Row("agents cannot be listed", "could not look for an agent pod: away"), having(failures={"agents": AWAY}))
    yield Row("cluster-info missing", "address: gone", reason=INFO), having(failures={"cluster_info": GONE})
    both = failing(cluster_info=GONE, create=AWAY)
    yield Row("cluster-info missing and no Deployment", f"{ENSURE}: away", "create", INFO), both
    yield Row("cluster-info without key", 'has no key "kubeconfig"', reason=INFO), having(info={"data": {"kubeconf": ""}})
    yield Row("cluster-info invalid", "holds no kubeconfig", reason=INFO), having(info=info("'not: yaml'"))
    yield Row("cluster-info without clusters", "has no clusters", reason=INFO), having(info=info("kind: Config\nclusters: []"))
    yield Row("exec fails", "load the key from agent pod muster/agent: away"), having(failures={"printed": AWAY})
    yield Row("invalid JSON", "did not print a JSON object"), having(output=b"no")
    certificate, key = r"certificate \(tls.crt\) that is not base64", r"key \(tls.key\) that is not base64"
    yield Row("invalid base64 of the certificate", certificate), having(output=b'{"tls.crt": "%"}')
    yield Row("no certificate", certificate), having(output=b"{}")
    yield Row("invalid base64 of the key", key), having(output=b'{"tls.crt": "AA==", "tls.key": "%"}')
    yield Row("bogus certificate", "no certificate can be read"), having(output=printed(b"bogus", PEM))
    yield Row("a key of another", "does not belong to"), having(output=printed(CERTIFICATE, FOREIGN))


async def test_a_failure_to_fetch_the_key_is_reported_and_tried_again() -> None:
    for row, host in failing_hosts():
        stage = Stage(host)
        failure = await stage.look()
        assert isinstance(failure, MusterError), f"{row}: so it is tried again"
        assert re.search(row.message, failure.message), row
        assert (stage.strategy.status, stage.strategy.reason, stage.strategy.message) == (
            "Error",
            row.reason,
            failure.message,
        ), row
        assert (stage.strategy.server, stage.strategy.signer) == ("", ""), f"{row}: no frontend"
        assert " ".join(stage.verbs) == row.verbs, row
        assert (stage.issuer.certificate != b"") is row.loads, row


async def test_a_fetched_key_is_reported_with_the_cluster_that_it_opens() -> None:
    stage = Stage(having())
    assert await stage.look() == RESYNC
    assert stage.strategy == Strategy(
        "KubeClusterSigningCertificate",
        "Success",
        "FetchedKey",
        "key was fetched successfully",
        server="https://kube.example:6443",
        authority=base64.b64encode(b"CA").decode(),
        signer=SIGNER,
    )
    assert (stage.verbs, stage.issuer.certificate) == ([], CERTIFICATE)
    set_by_hand = Stage(server="https://outside.example")
    await set_by_hand.look()
    assert set_by_hand.strategy.server == "https://outside.example"


async def test_a_missing_or_older_deployment_is_made_and_is_then_as_wanted() -> None:
    stage = Stage()
    assert (await stage.look(), await stage.look(), stage.verbs) == (RESYNC, RESYNC, ["create"])
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
    host = HostInMemory(deployed=deployed())
    for shape, written in ((replace(SHAPE, priority_class="high"), "high"), (SHAPE, "")):
        stage = Stage(host, shape)
        await stage.look()
        assert present(host.deployed)["spec"]["template"]["spec"]["priorityClassName"] == written
    assert stage.verbs == ["replace", "replace"]


async def test_a_key_is_fetched_once_in_a_quarter_of_an_hour_and_again_from_another_pod() -> None:
    stage = Stage(having(failures={"printed": AWAY}))
    await stage.look()
    stage.host.failures = {}
    assert await stage.look() == RESYNC
    assert (stage.host.executed, stage.issuer.certificate) == (["agent"] * 2, CERTIFICATE), "a failure is not kept"
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
    assert stage.issuer.certificate == certificate
    stage.host.deployed = older()
    stage.host.failures = {"remove": AWAY}
    assert isinstance(await stage.look(), UnavailableError)
    stage.clock.advance(timedelta(minutes=16))
    stage.host.output = printed(b"bogus", b"bogus")
    assert isinstance(await stage.look(), MusterError)
    stage.host.managing = []
    assert isinstance(await stage.look(), MusterError)
    assert stage.issuer.certificate == certificate


async def test_a_credential_issuer_that_cannot_be_read_or_written_is_tried_again() -> None:
    stage = Stage()
    stage.status.unreadable = AWAY
    assert await stage.look() is AWAY
    assert (stage.host.done, stage.status.written, stage.host.executed) == ([], [], [])
    stage = Stage(having())
    stage.status.failure = ConflictError("changed")
    untold = await stage.look()
    assert isinstance(untold, ConflictError)
    assert untold.message == "could not update the CredentialIssuer: changed"
    stage.host.failures = {"printed": InvalidError("no")}
    stage.clock.advance(timedelta(minutes=16))
    both = await stage.look()
    assert isinstance(both, UnavailableError)
    assert "agent pod muster/agent: no, could not update the CredentialIssuer" in both.message


async def test_a_follower_loads_the_key_from_the_leaders_pod_and_writes_nothing() -> None:
    """A write that is refused must not come before the cache is filled."""
    for existing, again in ((deployed(), RESYNC), (older(), LOOK_AGAIN)):
        stage = Stage(HostInMemory(deployed=existing))
        stage.status.leading = False
        assert await stage.look() == again
        assert (stage.issuer.certificate, stage.host.done, stage.status.written) == (CERTIFICATE, [], [])
    stage = Stage(HostInMemory(agents_pods=[]))
    stage.status.leading = False
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


async def test_what_is_shown_of_the_controller_holds_no_secret() -> None:
    stage = Stage()
    await stage.look()
    body = PEM.decode().splitlines()[1]
    assert stage.agent.snapshot() == {"reason": "FetchedKey", "signer": SIGNER, "keys fetched": 1}
    stage.host.output = printed(CERTIFICATE, PEM)[:-9]
    stage.clock.advance(timedelta(minutes=16))
    failure = await stage.look()
    assert body not in str(failure) + repr(failure) + str(stage.status.written)


def paths_of(manager: Any) -> tuple[str, str]:
    """The paths that the pod gets for this controller-manager."""
    [container] = rules.deployment(SHAPE, manager)["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    return environment.pop("CERT_PATH"), environment.pop("KEY_PATH")


def test_the_paths_are_those_of_the_controller_managers_flags() -> None:
    for flags, paths in (
        (OF_A, A),
        ((f"{CA}cert-file", "/a.crt", f"{CA}key-file", "/a.key"), A),
        (OF_B, B),
        ((*OF_B, *OF_A), A),  # both families: the standard one
        (("--unknown", "--v=3", "--cluster-signing-cert-file-not=/x"), DEFAULTS),
        ((f"{CA}cert-file",), DEFAULTS),  # cut off
    ):
        assert paths_of(manager(flags=flags)) == paths, flags
    pod, other = manager(flags=()), {"name": "x", "command": ["kcm", f"{CA}cert-file=/c.crt"], "args": [f"{CA}key-file=/c.key"]}
    pod["spec"]["containers"].append(other)
    assert paths_of(pod) == ("/c.crt", "/c.key"), "in each container, and in its command too"


def test_the_pod_sees_and_may_do_no_more_than_it_needs_to_read() -> None:
    found = manager(node="control-1")
    found["spec"]["volumes"].append({"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}})
    found["spec"]["containers"][0]["volumeMounts"].append({"name": "token", "mountPath": "/var/run/secrets"})
    pod, kcm = rules.deployment(SHAPE, found)["spec"]["template"]["spec"], manager(node="control-1")["spec"]
    for part in ("volumes", "nodeSelector", "nodeName", "tolerations", "hostNetwork"):
        assert pod[part] == kcm[part], part
    [container] = pod["containers"]
    assert [(each["name"], each["mountPath"]) for each in container["volumeMounts"]] == [("pki", "/pki"), ("flex", "/flex")]
    assert all(each["readOnly"] for each in container["volumeMounts"]), "it writes nothing on its host"
    pod = rules.deployment(SHAPE, manager())["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert (container["name"], container["command"]) == ("sleeper", ["python", "-m", "hub.extensions.kube_cert_agent", "sleep"])
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["resources"] == {"limits": {"cpu": "20m", "memory": "32Mi"}, "requests": {"cpu": "0", "memory": "32Mi"}}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["DAC_READ_SEARCH"]}
    assert (pod["automountServiceAccountToken"], pod["serviceAccountName"]) == (False, "hub-kube-cert-agent")
    assert (pod["terminationGracePeriodSeconds"], pod["securityContext"]) == (0, {"runAsUser": 0, "runAsGroup": 0})
    shape = AgentDeploymentShape("n", "a", "i", "s", {}, pull_secrets=("one", "two"), priority_class="high")
    pod = rules.deployment(shape, manager())["spec"]["template"]["spec"]
    assert (pod["imagePullSecrets"], pod["priorityClassName"]) == ([{"name": "one"}, {"name": "two"}], "high")
    made, label = rules.deployment(SHAPE, manager()), "kube-cert-agent.muster/hub-kube-cert-agent"
    assert made["spec"]["selector"] == {"matchLabels": {label: "v1"}}
    assert made["metadata"]["labels"] == {"extra": "yes", "app": "hub"}
    assert made["spec"]["template"]["metadata"]["labels"] == {"extra": "yes", label: "v1"}, (
        "without app, by which others select"
    )
    assert (made["spec"]["replicas"], made["spec"]["minReadySeconds"]) == (1, 10)


def test_a_deployment_is_compared_by_what_the_hub_wants_of_it() -> None:
    check_results(rules.is_within, yaml.safe_load((CASE_FILES / "deployments.yaml").read_text())["within"])


def cleaner(host: HostInMemory, *, leads: bool = True) -> OutdatedPods:
    return OutdatedPods(host, SHAPE, lambda: leads)


async def test_of_a_mix_only_older_pods_with_all_labels_go() -> None:
    mix: dict[str, Any] = {"old": OLD, "present": SHAPE.pod_labels, "another's": {LABEL: "v0"}, "stranger": SHAPE.labels}
    host = HostInMemory(agents_pods=[pod(name, labels=labels) for name, labels in mix.items()])
    assert (await cleaner(host).reconcile("gone"), host.done, host.outdated()) == (None, [], ["old"])
    for name in mix:
        await cleaner(host).reconcile(name)
    [(verb, removed)] = host.done
    assert (verb, removed["metadata"]["name"]) == ("remove_pod", "old")
    assert (removed["metadata"]["uid"], removed["metadata"]["resourceVersion"]) == ("uid-of-old", "7"), "this very one"


async def test_a_pod_that_went_meanwhile_is_done_and_another_failure_is_tried_again() -> None:
    host = HostInMemory(agents_pods=[pod("old", labels=OLD)], failures={"remove_pod": NotFoundError("gone")})
    assert await cleaner(host).reconcile("old") is None
    host.failures = {"remove_pod": UnavailableError("away")}
    await check_refusal_of(UnavailableError, cleaner(host).reconcile("old"))
    host.failures = {"pod": UnavailableError("away")}
    await check_refusal_of(UnavailableError, cleaner(host).reconcile("old"))


async def test_a_follower_removes_nothing_and_does_not_even_look() -> None:
    host = HostInMemory(agents_pods=[pod("old", labels=OLD)], failures={"pod": UnavailableError("asked")})
    assert (await cleaner(host, leads=False).reconcile("old"), host.done) == (None, [])


class Paper:
    def __init__(self, failure: OSError | None = None) -> None:
        self.text = ""
        self.rested = 0
        self._failure = failure

    def write(self, text: str) -> None:
        if self._failure is not None:
            raise self._failure
        self.text += text

    def rest(self) -> None:
        self.rested += 1


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "ca.crt").write_bytes(b"the certificate")
    (tmp_path / "ca.key").write_bytes(b"the key")
    return {"CERT_PATH": str(tmp_path / "ca.crt"), "KEY_PATH": str(tmp_path / "ca.key")}


def test_the_program_sleeps_or_prints_both_files_as_one_json_object(environment: dict[str, str]) -> None:
    paper = Paper()
    for words in ([], ["dance"], ["print", "more"]):
        assert "expected one word, sleep or print" in main(words, environment, paper.write, paper.rest)
        assert (paper.text, paper.rested) == ("", 0)
    assert (main(["sleep"], {}, paper.write, paper.rest), paper.text, paper.rested) == ("", "", 1)
    assert main(["print"], environment, paper.write, paper.rest) == ""
    written = {name: base64.b64decode(text) for name, text in json.loads(paper.text).items()}
    assert written == {"tls.crt": b"the certificate", "tls.key": b"the key"}


def test_a_missing_file_and_output_that_cannot_be_written_are_named(environment: dict[str, str]) -> None:
    full = Paper(OSError(28, "No space left on device"))
    assert main(["print"], environment, full.write, full.rest) == "kube-cert-agent: cannot write: No space left on device"
    for missing in ("CERT_PATH", "KEY_PATH"):
        paper, absent = Paper(), environment[missing] + ".absent"
        text = main(["print"], {**environment, missing: absent}, paper.write, paper.rest)
        assert (text, paper.text) == (f"kube-cert-agent: {absent} cannot be read: No such file or directory", "")


@contextmanager
def held_back(number: signal.Signals) -> Iterator[None]:
    """What is started in the block gets this signal when it asks for it, however early it is sent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_the_program_itself_sleeps_until_it_is_asked_to_stop_and_is_small() -> None:
    program = "hub.extensions.kube_cert_agent"
    code = f"import sys, runpy\nsys.argv = ['agent', 'dance']\ntry:\n runpy.run_module('{program}', run_name='__main__')\n"
    code += "except SystemExit:\n print(*sorted(each for each in sys.modules if each.partition('.')[0] in OURS))"
    ours = "OURS = {'hub', 'machinery', 'kubernetes', 'aiohttp', 'structlog', 'cryptography', 'pydantic'}\n"
    loaded = subprocess.run([sys.executable, "-c", ours + code], capture_output=True, timeout=20, check=True)
    assert set(loaded.stdout.decode().split()) <= {"hub", "hub.extensions", program}, "nothing that 32 MiB would not hold twice"
    with held_back(signal.SIGTERM):
        sleeping = subprocess.Popen([sys.executable, "-m", program, "sleep"])
    try:
        check_refusal(subprocess.TimeoutExpired, sleeping.wait, 0.5)
        sleeping.send_signal(signal.SIGTERM)
        assert sleeping.wait(20) == 0
    finally:
        sleeping.kill()
