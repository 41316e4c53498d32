"""`spoke doctor` beside a real agent and a real hub: well, before acceptance, and with the hub away."""

import asyncio
import sys

from tests.e2e.processes import Bench, free_port, until


async def doctor(bench: Bench, port: int) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "spoke", "doctor", "--bootstrap-kubeconfig", str(bench.folder / "c1.bootstrap")),
        *("--kubeconfig", str(bench.folder / "c1.kubeconfig"), "--health-listen", f"127.0.0.1:{port}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 40)
    return process.returncode or 0, out.decode()


async def test_the_doctor_says_what_is_wrong_and_what_to_do(bench: Bench) -> None:
    hub = await bench.hub()
    port = free_port()
    await bench.spoke("c1", None, "--health-listen", f"127.0.0.1:{port}")

    async def asked() -> bool:
        return bool(await bench.requests())

    await until(asked, what="the agent has asked for its certificate")
    code, said = await doctor(bench, port)
    assert code == 1, said
    assert "ok   hub: it answers" in said
    assert "-> approve its request on the hub: hubctl get csr" in said

    await bench.hubctl("accept", "c1")
    await bench.hubctl("certificate", "approve", "c1")
    await bench.available("c1")
    code, said = await doctor(bench, port)
    assert code == 0, said
    assert 'of cluster "c1", until ' in said

    assert await hub.stop() == 0
    code, said = await doctor(bench, port)
    assert code == 1, said
    assert "FAIL connection: " in said
    assert "-> check that the hub runs" in said
