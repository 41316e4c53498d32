"""What a request asks: its path, its query, the form of its answer."""

from datetime import UTC, datetime, timedelta

import pytest

from machinery.apiserver import options
from machinery.apiserver.access import Attributes
from machinery.apiserver.kinds.core import CONFIG_MAP, NAMESPACE
from machinery.apiserver.negotiation import JSON, YAML, Shape, negotiate
from machinery.apiserver.paths import attributes
from machinery.apiserver.storage import Key
from machinery.errors import BadRequestError, InvalidError, NotAcceptableError

NOW = datetime(2026, 11, 1, tzinfo=UTC)

LEASES = "/apis/coordination.k8s.io/v1"


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/version", {}, ("get", "", "", "", "")),
        ("GET", "/apis/g/v1", {}, ("get", "", "", "", "")),
        ("GET", "/api/v1/namespaces", {}, ("list", "namespaces", "", "", "")),
        ("GET", "/api/v1/namespaces/a", {}, ("get", "namespaces", "a", "a", "")),
        ("PUT", "/api/v1/namespaces/a/status", {}, ("update", "namespaces", "a", "a", "status")),
        ("GET", "/api/v1/namespaces/a/secrets", {}, ("list", "secrets", "a", "", "")),
        ("GET", "/api/v1/namespaces/a/secrets/s", {}, ("get", "secrets", "a", "s", "")),
        ("GET", "/api/v1/secrets", {"watch": "1"}, ("watch", "secrets", "", "", "")),
        ("GET", "/api/v1/secrets", {"watch": "false"}, ("list", "secrets", "", "", "")),
        ("GET", f"{LEASES}/watch/namespaces/a/leases/l", {}, ("watch", "leases", "a", "l", "")),
        ("POST", f"{LEASES}/namespaces/a/leases", {}, ("create", "leases", "a", "", "")),
        ("DELETE", f"{LEASES}/namespaces/a/leases", {}, ("deletecollection", "leases", "a", "", "")),
        ("DELETE", f"{LEASES}/namespaces/a/leases/l", {}, ("delete", "leases", "a", "l", "")),
        ("PATCH", f"{LEASES}/namespaces/a/leases/l", {}, ("patch", "leases", "a", "l", "")),
        ("HEAD", f"{LEASES}/leases", {}, ("list", "leases", "", "", "")),
        ("OPTIONS", f"{LEASES}/leases", {}, ("", "leases", "", "", "")),
    ],
)
def test_a_path_says_what_is_asked(method: str, path: str, query: dict[str, str], expected: tuple[str, ...]) -> None:
    asked: Attributes = attributes(method, path, query)

    assert (asked.verb, asked.resource, asked.namespace, asked.name, asked.subresource) == expected


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("accept", "media", "shape"),
    [
        ("", JSON, Shape.OBJECT),
        ("*/*", JSON, Shape.OBJECT),
        ("application/yaml", YAML, Shape.OBJECT),
        (f"{TABLE},application/json", JSON, Shape.TABLE),
        ("application/json;as=Table;v=v2;g=meta.k8s.io,application/json", JSON, Shape.OBJECT),
        ("application/vnd.kubernetes.protobuf,application/json", JSON, Shape.OBJECT),
        ("application/json;q=0.5,application/yaml", YAML, Shape.OBJECT),
        ("text/html,application/json;q=0.1", JSON, Shape.OBJECT),
        ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", JSON, Shape.PARTIAL),
    ],
)
def test_the_first_form_that_can_be_served_is_taken(accept: str, media: str, shape: Shape) -> None:
    form = negotiate(accept)

    assert (form.media, form.shape) == (media, shape)


@pytest.mark.parametrize("accept", ["text/html", "application/vnd.kubernetes.protobuf", "application/json;q=0"])
def test_a_form_that_cannot_be_served_is_refused(accept: str) -> None:
    with pytest.raises(NotAcceptableError):
        negotiate(accept)


def test_there_are_no_tables_of_pages() -> None:
    assert negotiate(f"{TABLE},application/json", shapes=False).shape is Shape.OBJECT


def test_a_timeout_may_only_lower_the_servers() -> None:
    most = timedelta(seconds=60)

    assert options.request_timeout({"timeout": "1m30s"}, most) == most
    assert options.request_timeout({"timeout": "0"}, most) == most
    assert options.request_timeout({"timeout": "1500ms"}, most) == timedelta(seconds=1.5)
    with pytest.raises(BadRequestError):
        options.request_timeout({"timeout": "junk"}, most)


def test_a_continue_token_brings_back_key_and_revision() -> None:
    token = options.write_continue(Key("ns", "a"), 42)

    assert options.read_continue(token) == options.Started(Key("ns", "a"), 42)


@pytest.mark.parametrize("token", ["garbage", "", "e30", "bnVsbA", "eyJydiI6MSwic3RhcnQiOjF9"])
def test_a_foreign_token_is_refused(token: str) -> None:
    with pytest.raises(BadRequestError):
        options.read_continue(token)


@pytest.mark.parametrize(
    "query",
    [
        {"resourceVersionMatch": "Exact"},
        {"resourceVersionMatch": "Nearly", "resourceVersion": "1"},
        {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
        {"resourceVersionMatch": "Exact", "resourceVersion": "1", "continue": "x"},
        {"sendInitialEvents": "true"},
    ],
)
def test_list_options_that_contradict_themselves_are_invalid(query: dict[str, str]) -> None:
    with pytest.raises(InvalidError):
        options.list_options(CONFIG_MAP, "", query, NOW)


def test_a_watch_starts_with_the_objects_when_no_revision_is_given() -> None:
    def initial(**query: str) -> tuple[bool, bool]:
        asked = options.watch_options(CONFIG_MAP, "", "", query, NOW)
        return asked.initial, asked.mark_initial

    assert initial() == (True, False)
    assert initial(resourceVersion="0") == (True, False)
    assert initial(resourceVersion="7") == (False, False)
    assert initial(sendInitialEvents="true", resourceVersionMatch="NotOlderThan", resourceVersion="7") == (True, True)
    assert initial(sendInitialEvents="false", resourceVersionMatch="NotOlderThan") == (False, False)


def test_only_declared_fields_can_be_selected() -> None:
    assert options.selection(NAMESPACE, "", {"fieldSelector": "status.phase=Active"}).fields.requirements
    with pytest.raises(BadRequestError, match=r"field label not supported: spec\.x"):
        options.selection(NAMESPACE, "", {"fieldSelector": "spec.x=1"})
