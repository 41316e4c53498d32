"""The filter chain, draining, and impersonation."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from machinery.apiserver.access import Attributes, Authorizer, Decision, attributes
from machinery.apiserver.authn.aggregation import Origin
from machinery.apiserver.authn.impersonation import Impersonation
from machinery.apiserver.http.filters import Draining, Incoming
from machinery.apiserver.http.loopback import USER_AGENT, Loopback
from machinery.apiserver.storage import Actor
from machinery.errors import BadRequestError, ForbiddenError, UnavailableError
from machinery.identity import is_reserved
from machinery.runtime.clock import ManualClock
from tests.checks import awaited_refusal, check_refusal_of, present

LOOPBACK = Loopback.fresh(ManualClock().now())
EXEMPT: dict[str, dict[str, str]] = {path: {} for path in ("/readyz", "/readyz/ping", "/livez", "/healthz", "/metrics")}
EXEMPT["/apis"] = {"Authorization": f"Bearer {LOOPBACK.token}"}
PLAIN: list[tuple[str, dict[str, str]]] = [(path, {}) for path in ("/apis", "/version", "/api/v1/namespaces/readyz/secrets")]
COUNTED = [*PLAIN, ("/apis", {"User-Agent": f"{USER_AGENT}1.2.3"}), ("/apis", {"Authorization": "Bearer another"})]


def incoming(path: str, headers: dict[str, str] | None = None) -> Incoming:
    request = make_mocked_request("GET", path, headers=headers or {})
    return Incoming(request, "audit", attributes("GET", request.path, request.query), 0.0)


async def fine(_incoming: Incoming) -> web.StreamResponse:
    return web.Response(text="fine")


def held_until(release: asyncio.Event) -> Any:
    async def slow(_incoming: Incoming) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    return slow


async def test_probes_and_loopback_are_let_in_while_draining() -> None:
    for path, headers in EXEMPT.items():
        draining = Draining(LOOPBACK)
        draining.refuse()
        release = asyncio.Event()

        assert (await draining.gate(incoming(path, headers), fine)).status == 200, (path, headers)
        probing = asyncio.create_task(draining.counted(incoming(path, headers), held_until(release)))
        await asyncio.sleep(0)
        await draining.drained()
        assert (await draining.counted(incoming(path, headers), fine)).status == 200, "also once the wait has begun"
        release.set()
        await probing


async def test_requests_are_refused_at_the_gate_and_awaited_behind_it() -> None:
    for path, headers in COUNTED:
        draining = Draining(LOOPBACK)
        assert (await draining.gate(incoming(path, headers), fine)).status == 200, (path, headers)
        release = asyncio.Event()

        working = asyncio.create_task(draining.counted(incoming(path, headers), held_until(release)))
        await asyncio.sleep(0)
        assert draining.in_flight == 1, (path, headers)
        draining.refuse()
        refused = await draining.gate(incoming(path, headers), fine)
        assert isinstance(refused, web.Response), (path, headers)
        assert (refused.status, refused.text) == (429, "The server is shutting down, please try again later.\n")
        assert refused.headers["Retry-After"] == "5", (path, headers)
        assert refused.keep_alive is False, (path, headers)
        waiting = asyncio.create_task(draining.drained())
        await asyncio.sleep(0)
        assert not waiting.done(), (path, headers)
        late = present(await awaited_refusal(UnavailableError, draining.counted(incoming(path, headers), fine)))
        assert late.retry_after is not None, (path, headers)
        release.set()
        await working
        await waiting


async def test_draining_does_not_wait_for_watches_or_failed_requests() -> None:
    draining = Draining(LOOPBACK)

    watch = incoming("/apis/example.com/v1/things?watch=1")
    assert watch.long_running
    watching = asyncio.create_task(draining.counted(watch, held_until(asyncio.Event())))
    await asyncio.sleep(0)
    await draining.drained()
    watching.cancel()

    draining = Draining(LOOPBACK)

    async def broken(_incoming: Incoming) -> web.StreamResponse:
        raise RuntimeError("broken")

    await check_refusal_of(RuntimeError, draining.counted(incoming("/apis"), broken))
    assert draining.in_flight == 0
    await draining.drained()


ALICE = Actor("alice", ("ops", "system:authenticated"))
WHOLE_REFUSAL = (
    '^users "bob" is forbidden: User "alice" cannot impersonate resource "users" in API group "" at the cluster scope$'
)


class Allows(Authorizer):
    """Lets everything pass but what is named, and remembers what was asked."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.asked: list[tuple[str, Attributes]] = []

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        self.asked.append((actor.user, attributes))
        return Decision(attributes.name not in self.refused)

    @property
    def questions(self) -> list[str]:
        return [
            "/".join(filter(None, (one.verb, one.group, one.resource, one.subresource, one.namespace, one.name)))
            for _, one in self.asked
        ]


async def answered(headers: Sequence[tuple[str, str]], authorizer: Authorizer | None = None, asker: Actor = ALICE) -> Incoming:
    """The request as what is behind the filter sees it."""
    request = make_mocked_request("GET", "/api/v1/nodes", headers=CIMultiDict(headers))
    incoming = Incoming(request, "an-id", Attributes("list", "/api/v1/nodes", resource="nodes"), 0.0, asker, asker)

    await Impersonation(authorizer or Allows(), lambda actor: is_reserved(actor.user, actor.groups))(incoming, fine)
    return incoming


async def test_every_impersonated_part_is_authorized_by_itself() -> None:
    authorizer = Allows()
    headers = [(f"Impersonate-{name}", value) for name, value in (("User", "bob"), ("Group", "dev"), ("Uid", "u-1"))]
    headers += [("impersonate-group", "qa"), ("Impersonate-Extra-example.org%2Fscopes", "view")]
    headers += [("impersonate-extra-EXAMPLE.org%2fscopes", "edit")]
    incoming = await answered(headers, authorizer)
    assert authorizer.questions == [
        *("impersonate/users/bob", "impersonate/groups/dev", "impersonate/groups/qa"),
        "impersonate/authentication.k8s.io/userextras/example.org/scopes/view",
        "impersonate/authentication.k8s.io/userextras/example.org/scopes/edit",
        "impersonate/authentication.k8s.io/uids/u-1",
    ]
    assert {user for user, _ in authorizer.asked} == {"alice"}
    assert incoming.actor == Actor(
        "bob", ("dev", "qa", "system:authenticated"), "u-1", {"example.org/scopes": ("view", "edit")}
    )
    assert incoming.authenticated is ALICE, "the audit needs to know who really asked"

    for refused in ("bob", "dev", "u-1", "view"):
        refused_with = present(await awaited_refusal(ForbiddenError, answered(headers, Allows(refused))))
        assert 'User "alice" cannot impersonate resource' in refused_with.message, refused
    await check_refusal_of(ForbiddenError, answered(headers, Allows("bob")), match=WHOLE_REFUSAL)


async def test_impersonated_identity_brings_its_implied_groups() -> None:
    authorizer = Allows()
    incoming = await answered([("Impersonate-User", "system:serviceaccount:edge1:metrics-agent")], authorizer)
    assert authorizer.questions == ["impersonate/serviceaccounts/edge1/metrics-agent"]
    assert incoming.actor.groups == ("system:serviceaccounts", "system:serviceaccounts:edge1", "system:authenticated")

    rows: list[tuple[str, list[str], tuple[str, ...]]] = [
        *(("bob", [], ("system:authenticated",)), ("bob", ["system:authenticated"], ("system:authenticated",))),
        ("bob", ["system:unauthenticated"], ("system:unauthenticated",)),
        ("system:anonymous", [], ("system:unauthenticated",)),
        ("system:serviceaccount:edge1:a", ["dev"], ("dev", "system:authenticated")),
        ("system:serviceaccount:edge1:a:b", [], ("system:authenticated",)),
    ]
    for user, groups, expected in rows:
        headers = [("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups)]
        assert (await answered(headers)).actor.groups == expected, (user, groups)


async def test_impersonation_needs_a_user_and_keeps_the_origin_of_the_requester(subtests: pytest.Subtests) -> None:
    authorizer = Allows()
    assert (await answered([], authorizer)).actor is ALICE
    assert authorizer.asked == []

    incoming = await answered([("Impersonate-User", "bob")], asker=Actor("ann", holder=Origin.DELEGATED))
    assert (incoming.actor.holder, (await answered([("Impersonate-User", "bob")])).actor.holder) == (Origin.DELEGATED, None)

    alone = {"Group": "dev", "Uid": "u", "Extra-scopes": "view", "User": "", "Unknown": "x"}
    for header in alone.items():
        with subtests.test(header=header), pytest.raises(BadRequestError, match="Impersonate-User"):
            await answered([(f"Impersonate-{header[0]}", header[1])])


AGENT = Actor("system:open-cluster-management:edge1:bcdfg", ("system:open-cluster-management:edge1",))
BOOTSTRAP = Actor("system:bootstrap:0123456789abcdef", ("system:bootstrappers:managedcluster",))


async def test_agents_and_bootstrap_identities_take_no_part_in_impersonation(subtests: pytest.Subtests) -> None:
    for asker in (AGENT, BOOTSTRAP):
        authorizer = Allows()
        with pytest.raises(ForbiddenError, match="is excluded from"):
            await answered([("Impersonate-User", "bob")], authorizer, asker)
        assert authorizer.asked == [], asker

        for headers in (
            [("Impersonate-User", asker.user)],
            [("Impersonate-User", "bob"), ("Impersonate-Group", asker.groups[0])],
        ):
            with subtests.test(headers=headers), pytest.raises(ForbiddenError, match="is excluded from"):
                await answered(headers)
