"""An agent proves which cluster it is where a hub demands it, and says what to do where it cannot."""

from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from machinery.errors import InvalidError, UnavailableError
from machinery.kube.client import KubeClient
from machinery.pki import TokenKeys, generate_key
from spoke.cluster import ServiceAccountAttest
from spoke.ports import Attest
from tests.fakes.stage import Stage, until
from tests.unit.spoke.test_agent import is_available


class Proving(Attest):
    """A cluster that makes tokens; `away`: its API server does not answer."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away
        self.asked: list[str] = []

    async def token(self, audience: str) -> str:
        self.asked.append(audience)
        if self.away:
            raise UnavailableError("the hub demands a token of this cluster, which cannot be had now: no answer")
        return f"token for {audience}"


async def test_an_agent_brings_a_token_for_the_hub_that_demands_one(stage: Stage) -> None:
    stage.attest = proving = Proving()
    stage.hub.attestation_audience = "urn:uuid:the-hub"
    async with stage.running():
        await until(lambda: is_available(stage))
    assert set(proving.asked) == {"urn:uuid:the-hub"}


async def test_an_agent_makes_no_token_that_nobody_demands(stage: Stage) -> None:
    stage.attest = proving = Proving()
    async with stage.running():
        await until(lambda: is_available(stage))
    assert proving.asked == []


async def test_an_agent_that_can_have_no_token_now_tries_again(stage: Stage) -> None:
    stage.attest = proving = Proving(away=True)
    stage.hub.attestation_audience = "the-hub"
    with capture_logs() as told:
        async with stage.running():
            await until(lambda: len(proving.asked) > 1)
            proving.away = False
            await until(lambda: is_available(stage))
    assert "cannot be had now: no answer" in str(told)
    assert "token for the-hub" not in str(told)


async def test_an_agent_without_a_way_to_tokens_says_so(stage: Stage) -> None:
    stage.hub.attestation_audience = "the-hub"
    with capture_logs() as told:
        async with stage.running():
            await until(lambda: "this agent can have none" in str(told))
    assert stage.hub.issued == []


@pytest.mark.parametrize("text", ["", "no token", "a.b.c"])
async def test_a_pod_whose_own_token_tells_no_account_says_which_option_there_is(tmp_path: Path, text: str) -> None:
    own = tmp_path / "token"
    own.write_text(text)
    with pytest.raises(InvalidError, match="--attestation-service-account NAMESPACE/NAME"):
        await ServiceAccountAttest(cast("KubeClient", None), own=own).token("the-hub")


async def test_a_pod_asks_for_a_token_of_the_account_that_it_runs_as(tmp_path: Path) -> None:
    own = tmp_path / "token"
    own.write_text(TokenKeys([generate_key()]).sign({"sub": "system:serviceaccount:agents:spoke"}))
    asked: list[tuple[str, object]] = []

    class Client:
        async def create(self, path: str, body: object) -> object:
            asked.append((path, body))
            return {"status": {"token": "t"}}

    assert await ServiceAccountAttest(cast("KubeClient", Client()), own=own).token("the-hub") == "t"
    ((path, body),) = asked
    assert path == "/api/v1/namespaces/agents/serviceaccounts/spoke/token"
    assert isinstance(body, dict)
    assert body["spec"] == {"audiences": ["the-hub"], "expirationSeconds": 600}
