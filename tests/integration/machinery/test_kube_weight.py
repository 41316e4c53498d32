"""What the Kubernetes client costs an agent, and what it leaves to others: in processes of their own."""

import json
import subprocess
import sys

_MEASURE = """
import json, pathlib, sys
import machinery.kube.client, machinery.kube.reflector
memory = dict(line.split()[:2] for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
print(json.dumps({"modules": list(sys.modules), "rss": int(memory["Rss:"]) / 1024}))
"""
_OTHERS = """
import machinery.kube.client
import kubernetes
from kubernetes import watch
from kubernetes.aio import dynamic, stream
import kubernetes.aio.watch
things = (kubernetes.client.V1Pod, kubernetes.aio.client.CoreV1Api, watch.Watch, kubernetes.aio.watch.Watch)
things += (dynamic.DynamicClient,)
print(kubernetes.__version__, *(thing.__name__ for thing in things), kubernetes.aio.leaderelection.__name__)
"""


def output(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_client_loads_neither_typed_models_nor_the_synchronous_half_and_stays_small() -> None:
    measured = json.loads(output(_MEASURE))
    loaded = [name for name in measured["modules"] if name.startswith("kubernetes.") and not name.startswith("kubernetes.aio")]
    assert loaded == []
    heavy = (
        *("kubernetes.aio.client.models.", "kubernetes.aio.client.api.", "kubernetes.aio.dynamic", "kubernetes.aio.stream"),
        *("requests", "oauthlib", "websocket"),
    )
    assert [name for name in measured["modules"] if name.startswith(heavy)] == []
    assert measured["rss"] < 60  # MB; with one typed API of Kubernetes it is 150


def test_other_users_of_the_package_find_all_of_it() -> None:
    version, *names = output(_OTHERS).split()
    assert int(version.split(".")[0]) >= 37
    assert names == ["V1Pod", "CoreV1Api", "Watch", "Watch", "DynamicClient", "kubernetes.aio.leaderelection"]
