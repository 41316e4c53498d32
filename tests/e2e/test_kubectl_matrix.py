"""A real kubectl against a real hub and one agent that joins: commands in the order of a table, their exit codes and output."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.processes import Bench, until
from tests.fakes.kubectl import Kubectl

pytestmark = [pytest.mark.e2e, pytest.mark.kubectl, pytest.mark.timeout(300)]

STEPS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parents[1] / "golden" / "kubectl-matrix.yaml").read_text())


async def failure(kubectl: Kubectl, bench: Bench, step: dict[str, Any]) -> str:
    """What is wrong with the outcome of a step; empty: nothing."""
    command, lacks = step["command"], step.get("lacks", "")
    request = (await bench.requests())[0]["metadata"]["name"] if "{csr}" in command else ""
    answer = await kubectl(*command.replace("{csr}", request).split(" "), given=step.get("given", ""))
    wanting = [pattern for pattern in step.get("says", ()) if not re.search(pattern, answer.output, re.MULTILINE)]
    unwanted = bool(lacks and re.search(lacks, answer.output, re.MULTILINE))
    if answer.exit == step.get("exit", 0) and not wanting and not unwanted:
        return ""
    return f"kubectl {command}\nexit {answer.exit}, wanting {wanting}, lacks {lacks!r}\n{answer.output[-2000:]}"


async def test_kubectl_does_what_operators_need(bench: Bench) -> None:
    """All steps, in the order of the table, at a hub with one accepted cluster whose agent waits for its certificate."""
    await bench.hub("--beat-interval=1s")
    await bench.spoke("edge1")
    await until(bench.requests, what="the agent asks for its certificate")
    await bench.hubctl("accept", "edge1")
    kubectl = Kubectl(bench.folder, kubeconfig=bench.admin)
    failures = [found for step in STEPS if (found := await failure(kubectl, bench, step))]
    assert not failures, "\n\n".join(failures)
