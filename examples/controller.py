"""A controller on a hub: labels each ManagedCluster with its Kubernetes minor version, for selectors and Argo CD.

python examples/controller.py admin.kubeconfig
"""

import sys
import time
from typing import Any

import urllib3
from kubernetes import client, config, watch

CLUSTERS: dict[str, Any] = {"group": "cluster.open-cluster-management.io", "version": "v1", "plural": "managedclusters"}
LABEL = "example.com/kubernetes-minor"
GONE, NOT_FOUND = 410, 404


def reconcile(api: client.CustomObjectsApi, cluster: dict[str, Any]) -> None:
    """Compare the label with the reported version, and patch it if they differ. Safe to repeat."""
    version = cluster.get("status", {}).get("version", {}).get("kubernetes", "")
    wanted = ".".join(version.removeprefix("v").split(".")[:2]) or None  # null removes a label
    name, labels = cluster["metadata"]["name"], cluster["metadata"].get("labels", {})
    if labels.get(LABEL) == wanted:
        return
    patch = {"metadata": {"labels": {LABEL: wanted}}}
    try:
        api.patch_cluster_custom_object(**CLUSTERS, name=name, body=patch, _content_type="application/merge-patch+json")
    except client.ApiException as error:
        if error.status != NOT_FOUND:  # else it was deleted in the meantime
            raise
    else:
        print(f"{name}: {LABEL}={wanted}", flush=True)


def run(api: client.CustomObjectsApi) -> None:
    """List all clusters, then watch from that resourceVersion. Start again when the hub has lost that history."""
    while True:
        try:
            listed: Any = api.list_cluster_custom_object(**CLUSTERS)
            for cluster in listed["items"]:
                reconcile(api, cluster)
            follow(api, listed["metadata"]["resourceVersion"])
        except client.ApiException as error:
            if error.status != GONE:
                raise
            print("the history has expired: listing again", flush=True)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            print(f"the hub does not answer: {error}", flush=True)
            time.sleep(1)


def follow(api: client.CustomObjectsApi, version: str) -> None:
    """Reconcile on each event. Raises ApiException with status 410 when `version` is too old."""
    while True:  # a watch ends after five minutes; the next one continues from the last event or bookmark
        options: dict[str, Any] = {"resource_version": version, "allow_watch_bookmarks": True, "timeout_seconds": 300}
        for event in watch.Watch().stream(api.list_cluster_custom_object, **CLUSTERS, **options):
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] in ("ADDED", "MODIFIED"):
                reconcile(api, event["object"])


if __name__ == "__main__":
    with config.new_client_from_config(sys.argv[1]) as connected:
        run(client.CustomObjectsApi(connected))
