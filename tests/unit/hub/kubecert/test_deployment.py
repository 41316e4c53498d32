"""The cert agent's Deployment, part by part, and how two are compared and merged."""

from typing import Any

import pytest

from hub.kubecert import deployment as rules
from hub.kubecert.deployment import Shape
from hub.kubecert.flags import CaPaths, paths_of
from tests.fakes.host_cluster import SHAPE, manager

DEFAULTS = CaPaths("/etc/kubernetes/ca/ca.pem", "/etc/kubernetes/ca/ca.key")
CA, CLIENT = "--cluster-signing-", "--cluster-signing-kube-apiserver-client-"


@pytest.mark.parametrize(
    ("flags", "paths"),
    [
        ((f"{CA}cert-file=/a.crt", f"{CA}key-file=/a.key"), CaPaths("/a.crt", "/a.key")),
        ((f"{CA}cert-file", "/a.crt", f"{CA}key-file", "/a.key"), CaPaths("/a.crt", "/a.key")),
        ((f"{CLIENT}cert-file=/b.crt", f"{CLIENT}key-file=/b.key"), CaPaths("/b.crt", "/b.key")),
        (
            (f"{CLIENT}cert-file=/b.crt", f"{CLIENT}key-file=/b.key", f"{CA}cert-file=/a.crt", f"{CA}key-file=/a.key"),
            CaPaths("/a.crt", "/a.key"),
        ),
        (
            ("--unknown", "--v=3", "--cluster-signing-cert-file-not=/x"),
            CaPaths("/etc/kubernetes/ca/ca.pem", "/etc/kubernetes/ca/ca.key"),
        ),
        ((f"{CA}cert-file",), DEFAULTS),
    ],
    ids=["equals", "two words", "alternate flags", "both families: the standard one", "defaults", "cut off"],
)
def test_the_paths_are_those_of_the_controller_managers_flags(flags: tuple[str, ...], paths: CaPaths) -> None:
    assert paths_of(manager(flags=flags)) == paths
    [container] = rules.deployment(SHAPE, manager(flags=flags))["spec"]["template"]["spec"]["containers"]
    assert {each["name"]: each["value"] for each in container["env"]} == {"CERT_PATH": paths.certificate, "KEY_PATH": paths.key}


def test_flags_are_looked_for_in_each_container_and_in_its_command_too() -> None:
    pod = manager(flags=())
    pod["spec"]["containers"].append(
        {"name": "x", "command": ["kcm", f"{CA}cert-file=/c.crt"], "args": [f"{CA}key-file=/c.key"]}
    )
    assert paths_of(pod) == CaPaths("/c.crt", "/c.key")


def test_the_pod_is_where_the_controller_manager_is_and_sees_what_it_sees() -> None:
    made = rules.deployment(SHAPE, manager(node="control-1"))
    pod = made["spec"]["template"]["spec"]
    kcm = manager(node="control-1")["spec"]
    for part in ("volumes", "nodeSelector", "nodeName", "tolerations", "hostNetwork"):
        assert pod[part] == kcm[part], part
    [container] = pod["containers"]
    assert [(each["name"], each["mountPath"]) for each in container["volumeMounts"]] == [("pki", "/pki"), ("flex", "/flex")]
    assert all(each["readOnly"] for each in container["volumeMounts"]), "it writes nothing on its host"


def test_the_pod_may_do_no_more_than_read() -> None:
    pod = rules.deployment(SHAPE, manager())["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert (container["name"], container["command"]) == ("sleeper", ["python", "-m", "hub.kubecert", "sleep"])
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["resources"] == {"limits": {"cpu": "20m", "memory": "32Mi"}, "requests": {"cpu": "0", "memory": "32Mi"}}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["DAC_READ_SEARCH"]}
    assert (pod["automountServiceAccountToken"], pod["serviceAccountName"]) == (False, "hub-kube-cert-agent")
    assert (pod["terminationGracePeriodSeconds"], pod["securityContext"]) == (0, {"runAsUser": 0, "runAsGroup": 0})


def test_the_controller_managers_own_token_is_not_mounted() -> None:
    pod = manager()
    pod["spec"]["volumes"].append({"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}})
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "token", "mountPath": "/var/run/secrets"})
    made = rules.deployment(SHAPE, pod)["spec"]["template"]["spec"]
    assert [volume["name"] for volume in made["volumes"]] == ["pki", "flex"]
    assert [mount["name"] for mount in made["containers"][0]["volumeMounts"]] == ["pki", "flex"]


def test_pods_are_selected_by_one_label_that_no_other_deployment_has() -> None:
    made = rules.deployment(SHAPE, manager())
    label = "kube-cert-agent.muster/hub-kube-cert-agent"
    assert made["spec"]["selector"] == {"matchLabels": {label: "v1"}}
    assert made["metadata"]["labels"] == {"extra": "yes", "app": "hub"}
    assert made["spec"]["template"]["metadata"]["labels"] == {"extra": "yes", label: "v1"}, (
        "without app, by which others select"
    )
    assert (made["spec"]["replicas"], made["spec"]["minReadySeconds"]) == (1, 10)


def test_pull_secrets_and_priority_are_the_settings() -> None:
    shape = Shape("n", "a", "i", "s", {}, pull_secrets=("one", "two"), priority_class="high")
    pod = rules.deployment(shape, manager())["spec"]["template"]["spec"]
    assert (pod["imagePullSecrets"], pod["priorityClassName"]) == ([{"name": "one"}, {"name": "two"}], "high")


@pytest.mark.parametrize(
    ("wanted", "there", "expected"),
    [
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
    ],
)
def test_one_is_within_another_that_says_all_of_it(wanted: Any, there: Any, expected: bool) -> None:  # noqa: FBT001 - a table
    assert rules.is_within(wanted, there) is expected


@pytest.mark.parametrize(
    ("existing", "wanted", "merged"),
    [
        (None, {"a": "1"}, {"a": "1"}),
        ({"b": "2"}, {"a": "1"}, {"a": "1", "b": "2"}),
        ({"a": "0", "b": "2"}, {"a": "1"}, {"a": "1", "b": "2"}),
        ({"b": "2"}, None, {"b": "2"}),
    ],
    ids=["empty", "new", "merged", "nothing wanted"],
)
def test_labels_of_others_are_never_removed(existing: Any, wanted: Any, merged: Any) -> None:
    assert rules.merge(existing, wanted) == merged
