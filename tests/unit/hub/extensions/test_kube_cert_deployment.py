"""The cert agent: its Deployment part by part, its program, and the pods of an older form that are removed."""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hub.extensions.kube_cert_agent import deployment as rules
from hub.extensions.kube_cert_agent.__main__ import main
from hub.extensions.kube_cert_agent.controller import OutdatedPods
from hub.extensions.kube_cert_agent.deployment import AgentDeploymentShape, CaPaths, paths_of
from machinery.errors import NotFoundError, UnavailableError
from tests.fakes.host_cluster import SHAPE, HostInMemory, manager, pod

CA, CLIENT = "--cluster-signing-", "--cluster-signing-kube-apiserver-client-"
A, B = CaPaths("/a.crt", "/a.key"), CaPaths("/b.crt", "/b.key")
DEFAULTS = CaPaths("/etc/kubernetes/ca/ca.pem", "/etc/kubernetes/ca/ca.key")
OF_A = (f"{CA}cert-file=/a.crt", f"{CA}key-file=/a.key")
OF_B = (f"{CLIENT}cert-file=/b.crt", f"{CLIENT}key-file=/b.key")


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
        [container] = rules.deployment(SHAPE, manager(flags=flags))["spec"]["template"]["spec"]["containers"]
        environment = {each["name"]: each["value"] for each in container["env"]}
        assert environment == {"CERT_PATH": paths.certificate, "KEY_PATH": paths.key}, flags
    pod, other = manager(flags=()), {"name": "x", "command": ["kcm", f"{CA}cert-file=/c.crt"], "args": [f"{CA}key-file=/c.key"]}
    pod["spec"]["containers"].append(other)
    assert paths_of(pod) == CaPaths("/c.crt", "/c.key"), "in each container, and in its command too"


def test_the_pod_sees_and_may_do_no_more_than_it_needs_to_read() -> None:
    found = manager(node="control-1")
    found["spec"]["volumes"].append({"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}})
    found["spec"]["containers"][0]["volumeMounts"].append({"name": "token", "mountPath": "/var/run/secrets"})
    pod = rules.deployment(SHAPE, found)["spec"]["template"]["spec"]
    kcm = manager(node="control-1")["spec"]
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
    made = rules.deployment(SHAPE, manager())
    label = "kube-cert-agent.muster/hub-kube-cert-agent"
    assert made["spec"]["selector"] == {"matchLabels": {label: "v1"}}
    assert made["metadata"]["labels"] == {"extra": "yes", "app": "hub"}
    assert made["spec"]["template"]["metadata"]["labels"] == {"extra": "yes", label: "v1"}, (
        "without app, by which others select"
    )
    assert (made["spec"]["replicas"], made["spec"]["minReadySeconds"]) == (1, 10)


def test_comparing_and_merging_leave_alone_what_others_wrote() -> None:
    table: tuple[tuple[Any, Any, bool], ...] = (
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": [1]}, {"a": [1, 2]}, False),
        ({"a": [{"x": 1}]}, {"a": [{"x": 1, "y": 2}]}, True),
        ({"a": []}, {}, True),
        ({"a": []}, {"a": [1]}, False),
        ({"a": False}, {}, True),
        ({"a": False}, {"a": True}, False),
        ({"a": True}, {}, False),
        ({"a": "x"}, {"a": ["x"]}, False),
    )
    assert [(wanted, there, rules.is_within(wanted, there)) for wanted, there, _ in table] == list(table)
    assert rules.merge(None, {"a": "1"}) == {"a": "1"}
    assert rules.merge({"b": "2"}, {"a": "1"}) == {"a": "1", "b": "2"}
    assert rules.merge({"a": "0", "b": "2"}, {"a": "1"}) == {"a": "1", "b": "2"}
    assert rules.merge({"b": "2"}, None) == {"b": "2"}, "labels of others are never removed"


LABEL = "kube-cert-agent.muster/hub-kube-cert-agent"
OLD = {**SHAPE.labels, LABEL: "v0"}


def cleaner(host: HostInMemory, *, leads: bool = True) -> OutdatedPods:
    return OutdatedPods(host, SHAPE, lambda: leads)


async def test_of_a_mix_only_older_pods_with_all_labels_go() -> None:
    mix: dict[str, Any] = {"old": OLD, "present": SHAPE.pod_labels, "another's": {LABEL: "v0"}, "stranger": SHAPE.labels}
    host = HostInMemory(agents_pods=[pod(name, labels=labels) for name, labels in mix.items()])
    assert await cleaner(host).reconcile("gone") is None
    assert host.done == []
    assert host.outdated() == ["old"]
    for name in mix:
        await cleaner(host).reconcile(name)
    [(verb, removed)] = host.done
    assert (verb, removed["metadata"]["name"]) == ("remove_pod", "old")
    assert (removed["metadata"]["uid"], removed["metadata"]["resourceVersion"]) == ("uid-of-old", "7"), "this very one"


async def test_a_pod_that_went_meanwhile_is_done_and_another_failure_is_tried_again() -> None:
    host = HostInMemory(agents_pods=[pod("old", labels=OLD)], failures={"remove_pod": NotFoundError("gone")})
    assert await cleaner(host).reconcile("old") is None
    host.failures = {"remove_pod": UnavailableError("away")}
    with pytest.raises(UnavailableError):
        await cleaner(host).reconcile("old")
    host.failures = {"pod": UnavailableError("away")}
    with pytest.raises(UnavailableError):
        await cleaner(host).reconcile("old")


async def test_a_follower_removes_nothing_and_does_not_even_look() -> None:
    host = HostInMemory(agents_pods=[pod("old", labels=OLD)], failures={"pod": UnavailableError("asked")})
    assert await cleaner(host, leads=False).reconcile("old") is None
    assert host.done == []


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
    assert main(["sleep"], {}, paper.write, paper.rest) == ""
    assert (paper.text, paper.rested) == ("", 1)
    assert main(["print"], environment, paper.write, paper.rest) == ""
    written = {name: base64.b64decode(text) for name, text in json.loads(paper.text).items()}
    assert written == {"tls.crt": b"the certificate", "tls.key": b"the key"}


def test_a_missing_file_and_output_that_cannot_be_written_are_named(environment: dict[str, str]) -> None:
    full = Paper(OSError(28, "No space left on device"))
    assert main(["print"], environment, full.write, full.rest) == "kube-cert-agent: cannot write: No space left on device"
    for missing in ("CERT_PATH", "KEY_PATH"):
        paper, absent = Paper(), environment[missing] + ".absent"
        said = main(["print"], {**environment, missing: absent}, paper.write, paper.rest)
        assert said == f"kube-cert-agent: {absent} cannot be read: No such file or directory"
        assert paper.text == ""


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "hub.extensions.kube_cert_agent", *words]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, timeout=20, check=False)


@contextmanager
def held_back(number: signal.Signals) -> Iterator[None]:
    """What is started in the block gets this signal when it asks for it, however early it is sent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_the_program_itself_sleeps_until_it_is_told_to_stop_and_is_small() -> None:
    program = "hub.extensions.kube_cert_agent"
    code = f"import sys, runpy\nsys.argv = ['agent', 'dance']\ntry:\n runpy.run_module('{program}', run_name='__main__')\n"
    code += "except SystemExit:\n print(*sorted(each for each in sys.modules if each.partition('.')[0] in OURS))"
    ours = "OURS = {'hub', 'machinery', 'kubernetes', 'aiohttp', 'structlog', 'cryptography', 'pydantic'}\n"
    loaded = subprocess.run([sys.executable, "-c", ours + code], capture_output=True, timeout=20, check=True)
    assert set(loaded.stdout.decode().split()) <= {"hub", "hub.extensions", program}, "nothing that 32 MiB would not hold twice"
    with held_back(signal.SIGTERM):
        sleeping = subprocess.Popen([sys.executable, "-m", program, "sleep"])
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            sleeping.wait(0.5)
        sleeping.send_signal(signal.SIGTERM)
        assert sleeping.wait(20) == 0
    finally:
        sleeping.kill()
