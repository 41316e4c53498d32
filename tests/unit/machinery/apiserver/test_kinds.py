"""Rules of the shared kinds, beyond what the recording shows."""

from typing import Any

import pytest

from machinery.apiserver.kinds.coordination import LEASE
from machinery.apiserver.kinds.core import CONFIG_MAP, LARGEST, NAMESPACE
from machinery.apiserver.kinds.secrets import SECRET
from machinery.apiserver.resource import Resource
from machinery.apiserver.storage import Actor
from machinery.apiserver.writes import Write
from machinery.clock import ManualClock
from machinery.errors import BadRequestError, InvalidError

NOW = ManualClock().now()


def write(resource: Resource) -> Write:
    return Write(resource, Actor("admin"), NOW)


def created(resource: Resource, **parts: Any) -> dict[str, Any]:
    envelope = {"apiVersion": resource.api_version(), "kind": resource.kind, "metadata": {"name": "a"}}
    new = write(resource).created({**envelope, **parts})
    identity = {"uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**new, "metadata": {**new["metadata"], **identity}}


def test_a_secrets_texts_become_data() -> None:
    secret = created(SECRET, data={"a": "MQ=="}, stringData={"b": "2"})

    assert secret["data"] == {"a": "MQ==", "b": "Mg=="}
    assert "stringData" not in secret
    assert secret["type"] == "Opaque"


def test_what_says_that_it_is_immutable_is() -> None:
    for resource in (SECRET, CONFIG_MAP):
        old = created(resource, immutable=True, data={"a": "MQ=="})
        with pytest.raises(InvalidError, match="immutable"):
            write(resource).changed({**old, "data": {"a": "Mg=="}}, old)
        with pytest.raises(InvalidError, match="immutable"):
            write(resource).changed({**old, "immutable": False}, old)


def test_a_namespace_terminates_until_its_content_is_gone() -> None:
    namespace = created(NAMESPACE)

    terminating = write(NAMESPACE).deleted(namespace)

    assert namespace["status"] == {"phase": "Active"}
    assert terminating is not None
    assert terminating["status"]["phase"] == "Terminating"
    assert "deletionTimestamp" in terminating["metadata"]
    assert write(NAMESPACE).deleted(terminating) == terminating


def test_a_namespace_is_a_dns_label() -> None:
    with pytest.raises(InvalidError, match="RFC 1123 label"):
        created(NAMESPACE, metadata={"name": "a.b"})


@pytest.mark.parametrize("spec", [{"leaseDurationSeconds": 0}, {"leaseTransitions": -1}])
def test_a_lease_with_impossible_numbers_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        created(LEASE, spec=spec)


def test_a_lease_of_wrong_types_is_a_bad_request() -> None:
    with pytest.raises(BadRequestError, match="cannot be handled as a Lease"):
        created(LEASE, spec={"leaseDurationSeconds": "60"})


def test_a_lease_is_never_overwritten_blindly() -> None:
    old = created(LEASE)
    blind = {**old, "metadata": {"name": "a"}}

    with pytest.raises(InvalidError, match="must be specified for an update"):
        write(LEASE).changed(blind, old)
    assert write(CONFIG_MAP).changed(created(CONFIG_MAP), created(CONFIG_MAP)) is not None


def test_null_is_absent_in_a_builtin_kind() -> None:
    secret = created(SECRET, data=None, stringData={"a": "1"}, type=None, immutable=None)

    assert (secret["data"], secret["type"]) == ({"a": "MQ=="}, "Opaque")
    assert "immutable" not in secret
    assert created(LEASE, spec={"holderIdentity": None, "renewTime": None})["spec"] == {}


@pytest.mark.parametrize(
    ("resource", "parts"),
    [(CONFIG_MAP, {"data": {"a": "x" * (LARGEST + 1)}}), (SECRET, {"stringData": {"a": "x" * (LARGEST + 1)}})],
    ids=["config map", "secret"],
)
def test_what_is_too_large_is_refused(resource: Resource, parts: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="Too long"):
        created(resource, **parts)


@pytest.mark.parametrize("key", ["", ".", "..", "a/b", "x" * 254])
def test_a_key_is_a_file_name(key: str) -> None:
    for resource in (SECRET, CONFIG_MAP):
        with pytest.raises(InvalidError, match="a valid config key"):
            created(resource, data={key: "MQ=="})
