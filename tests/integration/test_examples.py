"""The programs in `examples`, each run as its reader runs it."""

import asyncio
import os
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.config import new_client_from_config

from examples import controller, own_api
from tests.checks import check_refusal_of
from tests.integration.https_door.conftest import CLUSTERS, admin_of, hub_with
from tests.programs import ROOT, command

BOOK = (
    '{"apiVersion": "library.example.com/v1", "kind": "Book", "metadata": {"name": "emma"}, "spec": {"author": "Jane Austen"}}'
)


@pytest.mark.kubectl
async def test_own_api_serves_kubectl_with_columns_defaults_validation_and_watches() -> None:
    listening = await own_api.start(0)
    server = f"--server=http://127.0.0.1:{listening.port}"
    for words, given, expected in (
        (("create", "-f-"), BOOK, "book.library.example.com/emma created"),
        (("create", "-f-"), BOOK.replace('"Jane Austen"', "5"), 'must be of type string: "integer"'),
        *((("get", "bk"), "", "AUTHOR"), (("get", "books", "emma", "-o", "jsonpath={.spec.copies}"), "", "1")),
        (("get", "books", "-w", "--request-timeout=1s"), "", "Jane Austen"),
    ):
        ended = await command("kubectl", server, *words, given=given)
        assert expected in ended.stdout + ended.stderr, words
    await listening.close()


async def test_pytest_plugin_serves_a_project_that_has_only_the_package(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "test_with_cluster.py", tmp_path)
    words = ("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'temp'}", "--rootdir=.")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = await command(sys.executable, *words, cwd=tmp_path, env=environment)
    assert (ended.returncode, "4 passed" in ended.stdout) == (0, True), ended.stdout + ended.stderr


class ThreeLists(client.CustomObjectsApi):
    """The first list returns an expired resourceVersion, the third raises EOFError."""

    def __init__(self, api: client.ApiClient, expired: int) -> None:
        super().__init__(api)
        self._expired = expired
        self.lists = 0

    def list_cluster_custom_object(self, *arguments: Any, **options: Any) -> Any:
        self.lists += not options.get("watch")
        if self.lists == 3:
            raise EOFError
        answer: Any = super().list_cluster_custom_object(*arguments, **options)
        if self.lists == 1 and not options.get("watch"):
            answer["metadata"]["resourceVersion"] = str(self._expired)
        return answer


async def test_controller_labels_clusters_and_survives_expired_history_and_a_lost_hub(tmp_path: Path) -> None:
    async with hub_with(tmp_path) as hub:
        admin, path = await admin_of(hub), f"{CLUSTERS}/edge1"

        async def report(version: str) -> None:
            await admin.patch(f"{path}/status", {"status": {"version": {"kubernetes": version}}})

        async def labelled(minor: str) -> None:
            async with asyncio.timeout(10):
                while (await admin.get(path))[1]["metadata"].get("labels", {}).get(controller.LABEL) != minor:
                    pass

        await hub.join("edge1")
        expired = await hub.store.read(lambda tx: tx.changes.newest())
        await report("v1.34.2")
        await hub.store.run(lambda tx: tx.changes.compact(tx.now + timedelta(seconds=1)))
        with new_client_from_config(str(await hub.admin())) as connected:
            api = ThreeLists(connected, expired)
            running = asyncio.create_task(asyncio.to_thread(controller.run, api))
            await labelled("1.34")
            await report("v1.35.0+k3s1")
            await labelled("1.35")
            assert api.lists == 2
            await hub.stop()
            await check_refusal_of(EOFError, running)
