"""Why something was not done shows in hubctl's exit code, whichever command it was."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hub.cli.failures import DONE, FAILED, MISUSED, NOT_FOUND, UNREACHABLE
from tests.fakes.examples import LEAVES, typed
from tests.fakes.hubctl import hubctl, hubctl_at
from tests.integration.door.conftest import HubUnderTest, kept_free

WITHOUT_A_HUB = {
    "completion": DONE,
    "apply": MISUSED,  # the file of its example is not there, and that is seen first
    "login": FAILED,  # the issuer is asked first, and nobody can name it
    "logout": MISUSED,  # there is no such kubeconfig
    "credential": MISUSED,  # kubectl has to call it
    "diff": MISUSED,  # as from diff(1): 1 is a difference, 2 is trouble
}
"""What the first example of a command ends with when there is no hub, where it does not ask one, or not first."""
ABOUT_ONE = (
    ("get", "cluster", "nobody"),
    ("get", "cluster/nobody", "-o", "yaml"),
    ("describe", "cluster", "nobody"),
    ("describe", "rule", "nobody"),
    ("accept", "nobody"),
    ("deny", "nobody"),
    ("move", "cluster", "nobody", "--to", "eu"),
    ("rotate", "cluster", "nobody"),
    ("label", "cluster", "nobody", "a=b"),
    ("annotate", "cluster", "nobody", "a=b"),
    ("taint", "cluster", "nobody", "a:NoSelect"),
    ("wait", "cluster", "nobody", "--for=condition=Available"),
    ("delete", "cluster", "nobody"),
    ("delete", "cluster", "nobody", "--force"),
    ("certificate", "approve", "nobody"),
    ("drain", "replica", "nobody"),
)


@pytest.fixture
async def gone(hub: HubUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Hubctl is led to a hub that is not running any more."""
    path = await hub.admin()
    await hub.stop()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUBCTL_KUBECONFIG", str(path))
    with kept_free(hub.port):
        yield


@pytest.mark.usefixtures("gone")
async def test_a_hub_that_is_away_has_a_code_of_its_own_whichever_command_asks_it() -> None:
    ended = {}
    for words, command in LEAVES:
        if words.startswith("config "):
            continue  # it would change the kubeconfig of the others, and asks no hub
        begins = words.removesuffix(" anything").split()
        example = next(line for line in typed(command) if line[: len(begins)] == begins)
        said = await asyncio.to_thread(hubctl, *example)
        expected = WITHOUT_A_HUB.get(words, WITHOUT_A_HUB.get(begins[0], UNREACHABLE))
        if said.code != expected:
            ended[words] = (said.code, expected, said.err)
        assert "Traceback" not in said.err, said.err
    assert ended == {}, str(ended)


async def test_what_is_not_there_has_a_code_of_its_own_whichever_command_asks_for_it(hub: HubUnderTest) -> None:
    path = await hub.admin()
    ended = {words: await hubctl_at(path, *words) for words in ABOUT_ONE}
    assert {words: (said.code, said.err) for words, said in ended.items() if said.code != NOT_FOUND} == {}


async def test_wrong_usage_has_a_code_of_its_own_whichever_command_it_is(hub: HubUnderTest) -> None:
    path = await hub.admin()
    for words, _ in LEAVES:
        said = await hubctl_at(path, *words.split(), "--no-such-option")
        assert (said.code, "--no-such-option" in said.err) == (MISUSED, True), (words, said.err)
    absent = await hubctl_at(path.with_name("absent"), "get", "clusters")
    assert absent.code == MISUSED
