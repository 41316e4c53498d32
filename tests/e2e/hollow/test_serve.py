import asyncio
import signal
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from machinery.client.rest import KubeClient
from machinery.errors import UnavailableError
from tests.checks import check_refusal_of
from tests.programs import PIPE, Process, run, start

pytestmark = pytest.mark.e2e


@asynccontextmanager
async def hollow(*arguments: str) -> AsyncIterator[Process]:
    process = await start("hollow", *arguments, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def first_line(process: Process) -> str:
    assert process.stdout
    return (await process.stdout.readline()).decode()


async def outcome(*arguments: str) -> tuple[int, str, str]:
    ended = await run("hollow", *arguments)
    return ended.returncode, ended.stdout, ended.stderr


async def test_a_served_cluster_can_be_used_and_stops_cleanly(tmp_path: Path) -> None:
    for ending in (signal.SIGTERM, signal.SIGINT):
        file = tmp_path / "made" / f"{ending.name}.kubeconfig"
        async with hollow("serve", "--name", "c1", "--nodes", "2", "--claims", "6", "--kubeconfig-out", str(file)) as process:
            assert "hollow cluster c1 answers at https://127.0.0.1:" in await first_line(process)
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            async with await KubeClient.from_file(file) as client:
                found = await client.get("/api/v1/nodes")
                assert len(found["items"]) == 2
                assert len(await client.list("/apis/cluster.open-cluster-management.io/v1alpha1/clusterclaims")) == 6
                query = {"resourceVersion": found["metadata"]["resourceVersion"]}
                async with client.watch("/api/v1/nodes", query, within=timedelta(minutes=2)):
                    process.send_signal(ending)
                    assert await process.wait() == 0, "an open watch does not hold up the end"
                await check_refusal_of(UnavailableError, client.get("/version"))
            assert process.stderr
            assert await process.stderr.read() == b""


async def test_many_clusters_are_served_by_one_process_and_their_faults_switched_one_by_one(tmp_path: Path) -> None:
    files = [tmp_path / f"load-{index}.kubeconfig" for index in range(3)]
    many = ("--count", "3", "--name", "load", "--nodes", "1", "--kubeconfig-out", str(tmp_path / "{name}.kubeconfig"))
    async with hollow("serve", *many, "--fault", "no-livez") as process:
        for _ in files:
            await first_line(process)
        uids = set()
        for file in files:
            async with await KubeClient.from_file(file) as client:
                uids.add((await client.get("/api/v1/namespaces/kube-system"))["metadata"]["uid"])
                assert [node["metadata"]["name"] for node in await client.list("/api/v1/nodes")] == [f"{file.stem}-node-0"]
                assert (await client.raw("GET", "/livez")).status == 404
        assert len(uids) == 3
        async with await KubeClient.from_file(files[0]) as client:
            assert await outcome("fault", "--kubeconfig", str(files[0]), "error", "slow=10ms") == (0, "slow=0.01s, error\n", "")
            assert (await client.raw("GET", "/api/v1/nodes")).status == 500
            assert await outcome("fault", "--kubeconfig", str(files[0])) == (0, "slow=0.01s, error\n", "")
            assert await outcome("fault", "--kubeconfig", str(files[1])) == (0, "no-livez\n", "")
            assert await outcome("fault", "--kubeconfig", str(files[0]), "none") == (0, "healthy\n", "")
            assert (await client.raw("GET", "/livez")).status == 200


REFUSED = (
    (("serve", "--kubeconfig-out", "/proc/nowhere/c"), "Error: /proc/nowhere"),
    (("serve", "--kubeconfig-out", "c", "--host", "192.0.2.1"), "cannot listen on 192.0.2.1:0"),
    (("serve", "--kubeconfig-out", "c", "--host", "0.0.0.0"), "set one with --advertise"),  # noqa: S104 - refused
    (("serve", "--kubeconfig-out", "c", "--count", "2"), "put {name} into the file's name"),
    (("serve", "--kubeconfig-out", "c", "--name", "No Name"), 'cluster name "No Name" is not valid'),
    (("serve", "--kubeconfig-out", "c", "--fault", "tired"), 'no fault is called "tired"'),
    (("serve", "--kubeconfig-out", "{name}", "--count", "3", "--port", "65534"), "do not fit between port 65534 and 65535"),
    (("serve", "--kubeconfig-out", "c", "--kubernetes-version", "1.34"), "use one like v1.34.2"),
    (("fault", "--kubeconfig", "/nowhere"), "kubeconfig /nowhere cannot be read"),
)


async def test_what_cannot_be_done_is_said_without_a_stack_trace(tmp_path: Path) -> None:
    failures = []
    outcomes = await asyncio.gather(*(outcome(*arguments) for arguments, _ in REFUSED))
    for (arguments, sentence), (code, _, err) in zip(REFUSED, outcomes, strict=True):
        if code != 1 or sentence not in err or "Traceback" in err:
            failures.append((arguments, sentence, code, err))
    assert not failures
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = await outcome("serve", "--port", str(port), "--kubeconfig-out", str(tmp_path / "c"))
    assert refused == (1, "", f"Error: 127.0.0.1:{port} is in use: choose another --port\n")
    assert not (tmp_path / "c").exists()
