"""Acting as another: what the asker must be allowed, who it becomes, and who never takes part."""

from collections.abc import Sequence

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from machinery.apiserver.access import Attributes, Authorizer, Decision
from machinery.apiserver.authentication.frontproxy import Origin
from machinery.apiserver.filters import Incoming
from machinery.apiserver.impersonation import Impersonation
from machinery.apiserver.storage import Actor
from machinery.errors import BadRequestError, ForbiddenError
from machinery.identity import is_reserved

ALICE = Actor("alice", ("ops", "system:authenticated"))


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

    async def inner(_incoming: Incoming) -> web.StreamResponse:
        return web.Response()

    def never(actor: Actor) -> bool:
        return is_reserved(actor.user, actor.groups)

    await Impersonation(authorizer or Allows(), never)(incoming, inner)
    return incoming


async def test_without_headers_everybody_is_answered_as_oneself() -> None:
    authorizer = Allows()
    assert (await answered([], authorizer)).actor is ALICE
    assert authorizer.asked == []


async def test_every_part_of_the_claim_is_asked_for_by_itself_in_the_askers_name() -> None:
    authorizer = Allows()
    headers = [
        ("Impersonate-User", "bob"),
        ("Impersonate-Group", "dev"),
        ("impersonate-group", "qa"),
        ("Impersonate-Uid", "u-1"),
        ("Impersonate-Extra-example.org%2Fscopes", "view"),
        ("impersonate-extra-EXAMPLE.org%2fscopes", "edit"),
    ]
    incoming = await answered(headers, authorizer)
    assert authorizer.questions == [
        "impersonate/users/bob",
        "impersonate/groups/dev",
        "impersonate/groups/qa",
        "impersonate/authentication.k8s.io/userextras/example.org/scopes/view",
        "impersonate/authentication.k8s.io/userextras/example.org/scopes/edit",
        "impersonate/authentication.k8s.io/uids/u-1",
    ]
    assert {user for user, _ in authorizer.asked} == {"alice"}
    assert incoming.actor == Actor(
        "bob", ("dev", "qa", "system:authenticated"), "u-1", {"example.org/scopes": ("view", "edit")}
    )
    assert incoming.authenticated is ALICE, "the audit needs to know who really asked"


@pytest.mark.parametrize("refused", ["bob", "dev", "u-1", "view"])
async def test_one_part_that_is_refused_refuses_all(refused: str) -> None:
    headers = [
        ("Impersonate-User", "bob"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Uid", "u-1"),
        ("Impersonate-Extra-scopes", "view"),
    ]
    with pytest.raises(ForbiddenError) as told:
        await answered(headers, Allows(refused))
    assert 'User "alice" cannot impersonate resource' in told.value.message


async def test_the_refusal_is_in_kubernetes_words() -> None:
    with pytest.raises(ForbiddenError) as told:
        await answered([("Impersonate-User", "bob")], Allows("bob"))
    assert told.value.message == (
        'users "bob" is forbidden: User "alice" cannot impersonate resource "users" in API group "" at the cluster scope'
    )


async def test_who_is_known_by_another_server_stays_so_as_another() -> None:
    """Its rights are told there, also those of whom it acts as."""
    incoming = await answered([("Impersonate-User", "bob")], asker=Actor("ann", holder=Origin.DELEGATED))
    assert incoming.actor.holder is Origin.DELEGATED
    assert (await answered([("Impersonate-User", "bob")])).actor.holder is None


async def test_a_service_account_is_asked_for_as_one_and_brings_its_groups() -> None:
    authorizer = Allows()
    incoming = await answered([("Impersonate-User", "system:serviceaccount:edge1:metrics-agent")], authorizer)
    assert authorizer.questions == ["impersonate/serviceaccounts/edge1/metrics-agent"]
    assert incoming.actor.groups == ("system:serviceaccounts", "system:serviceaccounts:edge1", "system:authenticated")


@pytest.mark.parametrize(
    ("user", "groups", "expected"),
    [
        ("bob", [], ("system:authenticated",)),
        ("bob", ["system:authenticated"], ("system:authenticated",)),
        ("bob", ["system:unauthenticated"], ("system:unauthenticated",)),
        ("system:anonymous", [], ("system:unauthenticated",)),
        ("system:serviceaccount:edge1:a", ["dev"], ("dev", "system:authenticated")),
        ("system:serviceaccount:edge1:a:b", [], ("system:authenticated",)),
    ],
)
async def test_the_groups_that_come_by_themselves(user: str, groups: list[str], expected: tuple[str, ...]) -> None:
    headers = [("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups)]
    assert (await answered(headers)).actor.groups == expected


@pytest.mark.parametrize(
    "headers",
    [
        [("Impersonate-Group", "dev")],
        [("Impersonate-Uid", "u")],
        [("Impersonate-Extra-scopes", "view")],
        [("Impersonate-User", "")],
        [("Impersonate-Unknown", "x")],
    ],
)
async def test_a_claim_without_a_user_is_refused_and_never_answered_as_the_asker(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(BadRequestError, match="Impersonate-User"):
        await answered(headers)


AGENT = Actor("system:open-cluster-management:edge1:bcdfg", ("system:open-cluster-management:edge1",))
BOOTSTRAP = Actor("system:bootstrap:0123456789abcdef", ("system:bootstrappers:managedcluster",))


@pytest.mark.parametrize("asker", [AGENT, BOOTSTRAP])
async def test_agents_and_bootstrap_identities_never_act_as_another(asker: Actor) -> None:
    authorizer = Allows()
    with pytest.raises(ForbiddenError, match="takes no part"):
        await answered([("Impersonate-User", "bob")], authorizer, asker)
    assert authorizer.asked == []


@pytest.mark.parametrize(
    "headers",
    [
        [("Impersonate-User", AGENT.user)],
        [("Impersonate-User", BOOTSTRAP.user)],
        [("Impersonate-User", "bob"), ("Impersonate-Group", AGENT.groups[0])],
        [("Impersonate-User", "bob"), ("Impersonate-Group", BOOTSTRAP.groups[0])],
    ],
)
async def test_nobody_acts_as_an_agent_or_a_bootstrap_identity(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(ForbiddenError, match="takes no part"):
        await answered(headers)
