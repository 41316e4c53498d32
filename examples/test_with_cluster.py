"""Tests against a Kubernetes API that needs no Docker, no etcd and no binaries.

In your project, put `pytest_plugins` into `conftest.py`.
"""

import pytest
from kubernetes import client, watch

from hollow.pytest_plugin import ServedCluster

pytest_plugins = ["hollow.pytest_plugin"]


def deployment(name: str, replicas: int) -> client.V1Deployment:
    labels = {"app": name}
    pod = client.V1PodSpec(containers=[client.V1Container(name="web", image="nginx")])
    template = client.V1PodTemplateSpec(metadata=client.V1ObjectMeta(labels=labels), spec=pod)
    spec = client.V1DeploymentSpec(replicas=replicas, selector=client.V1LabelSelector(match_labels=labels), template=template)
    return client.V1Deployment(metadata=client.V1ObjectMeta(name=name), spec=spec)


def test_deployment_gets_its_pods(hollow_cluster: ServedCluster) -> None:
    apps, core = client.AppsV1Api(hollow_cluster.client), client.CoreV1Api(hollow_cluster.client)
    apps.create_namespaced_deployment("default", deployment("web", 2))
    pods = core.list_namespaced_pod("default", label_selector="app=web").items
    assert [pod.status and pod.status.phase for pod in pods] == ["Running", "Running"]


def test_every_test_has_a_cluster_of_its_own(hollow_cluster: ServedCluster) -> None:
    apps = client.AppsV1Api(hollow_cluster.client)
    assert apps.list_namespaced_deployment("default").items == []


def test_client_sees_a_failing_api_server(hollow_cluster: ServedCluster) -> None:
    core = client.CoreV1Api(hollow_cluster.client)
    hollow_cluster.set_faults("error")
    with pytest.raises(client.ApiException) as failed:
        core.list_node()
    hollow_cluster.set_faults()
    assert failed.value.status == 500
    assert len(core.list_node().items) == 3


def test_watch_ends_and_its_resource_version_expires(hollow_cluster: ServedCluster) -> None:
    core = client.CoreV1Api(hollow_cluster.client)
    listed = core.list_namespace().metadata
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name="later")))
    since = {"resource_version": listed and listed.resource_version, "timeout_seconds": 5}
    for event in watch.Watch().stream(core.list_namespace, **since):
        assert event["object"].metadata.name == "later"
        hollow_cluster.expire_history()
        break
    with pytest.raises(client.ApiException) as expired:
        list(watch.Watch().stream(core.list_namespace, **since))
    assert expired.value.status == 410
