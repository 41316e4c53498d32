"""How much the hub logs, changed over the HTTPS door: by Kubernetes' path, by hubctl, and by nobody who may not."""

import pytest

from hub.apiserver.verbosity import PATH
from hub.services import verbosity as orders
from machinery.errors import BadRequestError, ForbiddenError, InvalidError
from machinery.kube.client import KubeClient
from tests.integration.door.conftest import HubUnderTest


async def test_hubctl_orders_a_level_for_a_time_shows_it_and_takes_it_back(hub: HubUnderTest) -> None:
    assert (await hub.hubctl("log-level")).out == "info, as it was started\n"
    ordered = await hub.hubctl("log-level", "debug", "--for", "10m")
    assert ordered.out.startswith("debug until ")
    assert hub.verbosity.level == "debug"
    order = await hub.store.read(orders.standing)
    assert order is not None
    assert (order.level, order.by) == ("debug", "admin")
    assert (await hub.hubctl("log-level", "reset")).out == "info, as it was started\n"
    assert hub.verbosity.level == "info"


async def test_the_body_may_be_a_word_as_kubernetes_servers_take_it(hub: HubUnderTest) -> None:
    async with await KubeClient.from_file(await hub.admin()) as client:
        answer = await client.raw("PUT", PATH, body={"level": "warning"})
        assert (answer.status, hub.verbosity.level) == (200, "warning")
        told = await client.get(PATH)
        assert (told["ordered"], told["by"], told["started"]) == ("warning", "admin", "info")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"level": "chatty"}, InvalidError),
        ({"level": "debug", "for": "a while"}, BadRequestError),
        ({"level": "debug", "for": "9d"}, InvalidError),
        ({"level": 4}, BadRequestError),
        ({}, BadRequestError),
    ],
)
async def test_what_is_no_order_is_refused_and_changes_nothing(
    hub: HubUnderTest, body: dict[str, object], error: type[Exception]
) -> None:
    async with await KubeClient.from_file(await hub.admin()) as client:
        with pytest.raises(error):
            await client.update(PATH, body)
    assert hub.verbosity.level == "info"
    assert await hub.store.read(orders.standing) is None


async def test_an_agent_may_neither_see_nor_change_it(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    async with await KubeClient.from_file(await hub.agent("edge1")) as client:
        with pytest.raises(ForbiddenError):
            await client.get(PATH)
        with pytest.raises(ForbiddenError):
            await client.update(PATH, {"level": "debug"})
    assert hub.verbosity.level == "info"


async def test_a_mistyped_level_is_told_with_those_that_there_are(hub: HubUnderTest) -> None:
    ended = await hub.hubctl("log-level", "verbose")
    assert ended.code == 2
    assert "debug" in ended.err
