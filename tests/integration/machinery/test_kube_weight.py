"""What the Kubernetes client costs an agent: measured in a process of its own."""

import json
import subprocess
import sys

_MEASURE = """
import json, pathlib, sys
import machinery.kube.client, machinery.kube.reflector
memory = dict(line.split()[:2] for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
print(json.dumps({"modules": list(sys.modules), "rss": int(memory["Rss:"]) / 1024}))
"""


def test_the_client_loads_no_typed_models_and_stays_small() -> None:
    answer = subprocess.run([sys.executable, "-c", _MEASURE], capture_output=True, text=True, check=True, timeout=60)
    measured = json.loads(answer.stdout)
    heavy = tuple(f"kubernetes.{side}{part}." for side in ("", "aio.") for part in ("client.models", "client.api"))
    assert [name for name in measured["modules"] if name.startswith(heavy)] == []
    assert measured["rss"] < 75  # MB; with one typed API of Kubernetes it is 150
