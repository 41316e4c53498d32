"""Hubs that are assembled in this process: several at once, each with ports of its own."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from hub.serve import Hub
from machinery.client.kubeconfig import read_kubeconfig
from machinery.lifecycle.startup import StartError, reserved_port
from machinery.runtime.tls import client_context
from tests.fakes.inprocess_hub import HUB, OTHER_HUB, InProcessHub, hub_in_process

READY = "/readyz?verbose"


async def asked(hub: Hub, path: str) -> str:
    """What the administrator of a hub is answered, at the address and with the credential of its kubeconfig."""
    admin = read_kubeconfig(hub.core.certificates.admin_path)
    shown = admin.require_credential()
    context = client_context(admin.cluster.certificate_authority, shown.chain, shown.key)
    async with aiohttp.ClientSession() as session, session.get(admin.cluster.server + path, ssl=context) as answer:
        answer.raise_for_status()
        return await answer.text()


async def test_hubs_share_a_process_and_each_serves_on_free_ports(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with hub_in_process(folders[0], leads=True) as one, hub_in_process(folders[1], hub_id=OTHER_HUB) as two:
        assert (one.core.resources.hub_id, two.core.resources.hub_id) == (HUB, OTHER_HUB)
        listening = [each.core.context.settings for each in (one, two)]
        assert len({address.port for each in listening for address in (each.grpc_listen, each.https_listen)} - {0}) == 4
        assert [each.agents.door.port for each in (one, two)] == [each.grpc_listen.port for each in listening]
        assert "[+]poststarthook/controllers ok" in await asked(one, READY)
        assert "controllers" not in await asked(two, READY)  # it does not stand for election
        assert (one.leading.leadership.term, two.leading.leadership.term) == (1, None)
        admin = [read_kubeconfig(each.core.certificates.admin_path).require_credential().chain for each in (one, two)]
        assert admin[0] != admin[1]


async def test_a_task_that_fails_stops_the_hub_with_its_error(tmp_path: Path) -> None:
    running = InProcessHub(tmp_path)
    hub = await running.start()
    hub.core.context.process.shutdown.failed(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        await running.stop()


async def test_a_reserved_port_can_be_listened_on_by_its_number_only() -> None:
    with reserved_port("127.0.0.1") as port:
        server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", port)
        with reserved_port("127.0.0.1") as other:
            assert other != port
        server.close()
        await server.wait_closed()
    with pytest.raises(StartError, match="can be reserved"), reserved_port("203.0.113.1"):
        pass
