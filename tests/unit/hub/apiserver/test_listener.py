"""The HTTPS door: what it stores of a write, and how it behaves under load, without its database and while it drains."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from hub.apiserver.kinds.addon import managed_cluster_add_on
from hub.apiserver.lists import FRESH, KEPT, PATIENCE, RevocationLists
from hub.apiserver.writepaths import write_paths
from hub.domain.addon_versions import add_on_stored
from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.request import SERIAL_EXTRA, SIGNER, USAGES, requester_serial
from machinery import pki
from machinery.apiserver.filters import Incoming
from machinery.apiserver.ownership import Ownership, with_holdings
from machinery.apiserver.paths import attributes
from machinery.apiserver.storage import Actor, GroupResource
from machinery.clock import Clock, ManualClock
from machinery.errors import UnavailableError
from machinery.identity import AgentId, ClusterName, SerialNumber, agent_subject
from machinery.product import GROUP_SUFFIX
from tests.fakes.inline_store import InlineStore
from tests.fakes.virtual_time import LoopClock, in_virtual_time
from tests.unit.hub.test_revocation_lists import TwoSigners

CALLERS = 20


class HangingStore(InlineStore):
    """Answers as long as `hangs` is not set."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.hangs = False
        self.asked = 0

    async def read(self, query: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(10 * KEPT)
        return await super().read(query, *args, **kwargs)


async def nobody_else(_incoming: Incoming) -> web.StreamResponse:
    raise AssertionError("these paths are answered here")


async def asked(lists: RevocationLists) -> str:
    request = make_mocked_request("GET", "/crl")
    incoming = Incoming(request, "audit", attributes("GET", request.path, request.query), 0.0)
    try:
        answer = await lists(incoming, nobody_else)
    except UnavailableError as error:
        return error.reason
    assert isinstance(answer, web.Response)
    return str(answer.text)


def test_while_the_database_hangs_the_last_lists_are_served_for_a_while_and_nobody_waits_for_others() -> None:
    async def scenario() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        store = HangingStore(clock)
        store.hangs = True
        lists = RevocationLists(store, TwoSigners(), clock)
        async with asyncio.timeout(PATIENCE + FRESH):
            said = await asyncio.gather(*(asked(lists) for _ in range(CALLERS)))
        assert set(said) == {"ServiceUnavailable"}
        assert store.asked == 1
        store.hangs = False
        await asyncio.sleep(2 * FRESH)
        first = await asked(lists)
        assert len(json.loads(first)["lists"]) == 2
        store.hangs = True
        await asyncio.sleep(2 * FRESH)
        assert await asked(lists) == first
        await asyncio.sleep(KEPT)
        assert await asked(lists) == "ServiceUnavailable"
        store.hangs = False
        await asyncio.sleep(2 * FRESH)
        assert await asked(lists) == first

    in_virtual_time(scenario())


REQUESTS = GroupResource("certificates.k8s.io", "certificatesigningrequests")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUBJECT = agent_subject(ClusterName("edge1"), AgentId("a"))


def test_only_the_certificate_that_an_agent_came_with_is_noted() -> None:
    spec = {"request": b64encode(pki.build_request(SUBJECT, pki.generate_key())).decode(), "signerName": SIGNER}
    request = {"metadata": {"name": "r"}, "spec": {**spec, "usages": list(USAGES)}}
    for purpose, noted in ((Purpose.AGENT, 0xABC), (Purpose.OPERATOR, None), (None, None)):
        holder = purpose and CertificateRecord(SerialNumber(0xABC), purpose, "somebody", (), NOW, NOW, "", NOW)
        actor = Actor("somebody", extra={SERIAL_EXTRA: ("def",), "other": ("kept",)}, holder=holder)
        put = write_paths(GROUP_SUFFIX)[REQUESTS].put
        document = InlineStore(ManualClock()).transact(put, request, None, actor).stored.document
        assert requester_serial(document) == noted, purpose
        assert document["spec"]["extra"]["other"] == ["kept"]


GROUP = "addon.open-cluster-management.io"
RESOURCE = managed_cluster_add_on("open-cluster-management.io")
MINE = Ownership(RESOURCE, "ann", f"{GROUP}/v1alpha1", "", "2026-01-01T00:00:00Z")


def stored_after(config: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    document, holdings = MINE.applied(config, old, force=False)
    stored = {**add_on_stored(document), "apiVersion": f"{GROUP}/v1beta1"}
    return with_holdings({**stored, "metadata": {**stored["metadata"], "uid": "u", "resourceVersion": "5"}}, holdings)


def test_an_add_on_that_is_applied_again_stays_as_it_is() -> None:
    metadata = {"name": "logs", "namespace": "edge1"}
    for spec in ({}, {"installNamespace": "logging"}):
        config = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "ManagedClusterAddOn", "metadata": metadata, "spec": spec}
        first = stored_after(config, None)
        assert stored_after(config, first) == first
        document, _ = MINE.applied(config, first, force=False)
        assert document["spec"]["installNamespace"] == spec.get("installNamespace", "open-cluster-management-agent-addon")
