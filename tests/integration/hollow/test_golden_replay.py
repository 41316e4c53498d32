"""The recorded answers of a real kube-apiserver on namespaces, leases and secrets, asked of a hollow cluster."""

import base64
import ssl
from dataclasses import dataclass

import aiohttp
import pytest

from hollow.cluster import HollowCluster
from hollow.objects import Shape
from tests.golden.compare import differences
from tests.golden.replay import TOKENS, Exchange, Replay, exchanges

PARTS = ("/api/v1/namespaces", "/apis/coordination.k8s.io/")
DELIBERATE = {
    "ns table": "another cluster has other namespaces",
    "lease bad time": "the message also says which field it is",
    "secret bad base64": "the message also says which field it is",
    "ns delete": "a namespace is emptied and gone at once",
    "ns terminating": "a namespace is emptied and gone at once",
}
"""Where a hollow cluster answers otherwise, with the reason. A difference that is gone fails the test too."""


@dataclass
class HollowWorld:
    cluster: HollowCluster

    @property
    def url(self) -> str:
        return self.cluster.url

    async def settle(self) -> None:
        """Nothing works behind a hollow cluster."""


CASES = [
    exchange for exchange in exchanges() if exchange.request["path"].startswith(PARTS) and exchange.response["status"] != 404
]


@pytest.fixture(scope="module")
async def found() -> dict[str, list[str]]:
    """Differences by case."""
    async with HollowCluster(Shape("golden"), token=TOKENS["admin"]) as cluster:
        ca = base64.b64decode(cluster.kubeconfig()["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=ca))
        async with aiohttp.ClientSession(connector=connector) as session:
            replay = Replay(HollowWorld(cluster), session)
            result = {}
            for exchange in CASES:
                answer = await replay._send(exchange)
                replay._learn(exchange.response.get("body"), answer.content)
                result[exchange.case] = list(differences(exchange, answer.status, answer.headers, answer.content))
            return result


@pytest.mark.parametrize("exchange", CASES, ids=[case.name for case in CASES])
def test_the_answer_is_as_recorded(exchange: Exchange, found: dict[str, list[str]]) -> None:
    if reason := DELIBERATE.get(exchange.case):
        assert found[exchange.case], f"no longer different, though {reason}"
    else:
        assert found[exchange.case] == []
