"""The published documents: complete, true to discovery, chosen by Accept, kept by hash."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import yaml
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

from docs import api_pages
from hub.registry.generic import HUB_KINDS
from machinery.apiserver.openapi.documents import OLD_PROTO, PROTO
from machinery.apiserver.openapi.schemas import schema_name
from machinery.apiserver.write.schema import pruned, violations
from tests.fakes.golden_hub import HubWorld
from tests.fakes.identity import EveryoneIsAdmin

LENGTH_DELIMITED = 2
METHODS = ("get", "put", "post", "patch", "delete")
VERBS = {"create": "post", "update": "put", "deletecollection": "delete", "list": "get", "watch": "get"}


@dataclass(frozen=True, slots=True)
class Published:
    """A server, and what it publishes: version 3 by path, and version 2."""

    session: aiohttp.ClientSession
    url: str
    documents: dict[str, Any]
    two: Any

    def get(self, path: str, **how: Any) -> Any:
        return self.session.get(self.url + path, **how)


@pytest.fixture(scope="module")
async def published(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Published]:
    world = HubWorld(tmp_path_factory.mktemp("hub"), EveryoneIsAdmin())
    await world.start()
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{world.url}/openapi/v3") as answer:
            index = (await answer.json())["paths"]
        documents = {}
        for path, entry in index.items():
            async with session.get(world.url + entry["serverRelativeURL"]) as answer:
                assert answer.headers["Cache-Control"] == "public, immutable"
                documents[path] = await answer.json()
        async with session.get(f"{world.url}/openapi/v2") as answer:
            two = await answer.json()
        yield Published(session, world.url, documents, two)
    await world.close()


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield path, method, item[method]


async def test_every_verb_of_discovery_has_its_operation(published: Published) -> None:
    missing = []
    for path, document in published.documents.items():
        if not path.startswith(("api/v", "apis/")) or path.count("/") == 1 != path.startswith("api/"):
            continue
        documented = {(route, method) for route, method, _ in operations(document)}
        async with published.get(f"/{path}") as answer:
            listed = (await answer.json())["resources"]
        for resource in listed:
            name, _, part = resource["name"].partition("/")
            scope = f"/{path}/namespaces/{{namespace}}" if resource["namespaced"] else f"/{path}"
            for verb in resource["verbs"]:
                whole = not part and verb in ("list", "create", "deletecollection", "watch")
                route = f"{scope}/{name}" if whole else f"{scope}/{name}/{{name}}" + (f"/{part}" if part else "")
                if (route, VERBS.get(verb, verb)) not in documented:
                    missing.append((verb, route))
    assert missing == []


def test_references_names_parameters_and_merge_keys_are_complete(published: Published) -> None:
    documents, two = published.documents, published.two
    for document in documents.values():
        assert set(references(document)) <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
        for path, method, operation in operations(document):
            if method == "patch":  # kubectl follows no references there
                named = {each["name"] for each in operation["parameters"]}
                assert {"dryRun", "fieldManager", "fieldValidation", "force"} <= named, path
    assert set(references(two)) <= {f"#/definitions/{name}" for name in two["definitions"]}
    names = [operation["operationId"] for document in documents.values() for _, _, operation in operations(document)]
    assert sorted(set(names)) == sorted(names)
    assert sorted(operation["operationId"] for _, _, operation in operations(two)) == sorted(names)

    found = documents["apis/certificates.k8s.io/v1"]
    schema = found["components"]["schemas"]["io.k8s.api.certificates.v1.CertificateSigningRequest"]
    conditions = schema["properties"]["status"]["properties"]["conditions"]
    patch = found["paths"]["/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}"]["patch"]
    assert conditions["x-kubernetes-patch-merge-key"] == "type"
    assert "application/strategic-merge-patch+json" in patch["requestBody"]["content"]
    custom = documents["apis/cluster.open-cluster-management.io/v1"]["paths"]
    patch = custom["/apis/cluster.open-cluster-management.io/v1/managedclusters/{name}"]["patch"]
    assert "application/strategic-merge-patch+json" not in patch["requestBody"]["content"]


async def test_the_documents_by_hash(published: Published) -> None:
    path = "/openapi/v3/api/v1"
    async with published.get(path) as answer:
        tag = answer.headers["ETag"]
        assert answer.headers["Cache-Control"] == "no-cache, private"
    async with published.get(path, params={"hash": "0"}, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (301, f"{path}?hash={tag.strip(chr(34))}")
    async with published.get(path, headers={"If-None-Match": f'"x", W/{tag}'}) as answer:
        assert (answer.status, await answer.read()) == (304, b"")
    async with published.get("/openapi/v3/api/v9") as answer:
        assert answer.status == 404
    async with published.get("/openapi/v3") as answer:
        index = answer.headers["ETag"]
    async with published.get("/openapi/v3", headers={"If-None-Match": index}) as answer:
        assert answer.status == 304


async def test_reference_pages_have_the_published_descriptions_and_valid_examples(published: Published) -> None:
    """The published descriptions are those of kubectl explain; a hub accepts the example of each kind that can be created."""
    schemas = {name: each for one in published.documents.values() for name, each in one["components"]["schemas"].items()}
    wrong = [name for name, part in HUB_KINDS.schema("Condition")["properties"].items() if not part["description"]]
    created = 0
    for kind, (resource, paths) in api_pages.kinds().items():
        document = yaml.safe_load(api_pages.examples()[kind])
        found = schemas[schema_name(resource, resource.version)]
        described = {path: each.get("description") for path, each, _ in api_pages.fields(found)}
        for path, schema, _ in api_pages.fields(resource.schema):
            wrong += [f"{kind}: {path}"] if not described.get(path) or described[path] != schema["description"] else []
        wrong += [f"{kind}: {each}" for each in (*pruned(resource.schema, document)[1], *violations(resource.schema, document))]
        if "create" in resource.verbs and not paths and kind != "TokenCredentialRequest":  # that needs an authenticator
            created += 1
            namespace = f"namespaces/{document['metadata']['namespace']}/" if resource.namespaced else ""
            path = f"{published.url}/apis/{document['apiVersion']}/{namespace}{resource.name}?dryRun=All&fieldValidation=Strict"
            async with published.session.post(path, json=document) as answer:
                wrong += [f"{kind}: {await answer.text()}"] if answer.status != 201 else []
    assert not wrong, "\n".join(wrong)
    assert created > 9


ACCEPTED = (
    *(("", 200, "application/json"), ("*/*", 200, "application/json"), ("application/json", 200, "application/json")),
    *((f"{PROTO};q=0.5, application/json", 200, "application/json"), (PROTO, 200, PROTO), (OLD_PROTO, 200, PROTO)),
    *((f"text/html, {OLD_PROTO}", 200, PROTO), ("text/html", 406, None)),
)


async def test_version_two_is_chosen_by_accept_has_one_etag_and_comes_compressed(published: Published) -> None:
    for accept, status, media in ACCEPTED:
        async with published.get("/openapi/v2", headers={"Accept": accept}) as answer:
            assert answer.status == status, accept
            assert answer.headers["Vary"] == "Accept, Accept-Encoding"
            assert media is None or answer.headers["Content-Type"] == media, accept
    tags, sizes = [], []
    for accept in ("application/json", PROTO):
        for encoding in ("gzip", "identity"):
            async with published.get("/openapi/v2", headers={"Accept": accept, "Accept-Encoding": encoding}) as answer:
                sizes.append(len(await answer.read()))
                tags.append(answer.headers["ETag"])
                assert answer.headers.get("Content-Encoding") == ("gzip" if encoding == "gzip" else None)
    assert len(set(tags)) == 1
    assert sizes[0] == sizes[1] != sizes[2] == sizes[3]
    async with published.get("/openapi/v2", headers={"Accept": PROTO, "If-None-Match": tags[0]}) as answer:
        assert answer.status == 304


async def test_the_protobuf_of_version_two_names_what_the_json_names(published: Published) -> None:
    two = published.two
    async with published.get("/openapi/v2", headers={"Accept": PROTO}) as answer:
        message = await answer.read()

    document = fields(message)
    paths = [fields(entry) for entry in fields(document[8][0])[2]]
    definitions = {text(fields(entry)[1]): fields(fields(entry)[2][0]) for entry in fields(document[9][0])[1]}

    assert (text(document[1]), [text(path[1]) for path in paths]) == ("2.0", list(two["paths"]))
    assert list(definitions) == list(two["definitions"])
    for name, schema in definitions.items():
        properties = [text(fields(entry)[1]) for entry in fields(schema[25][0]).get(1, [])] if 25 in schema else []
        assert properties == list(two["definitions"][name].get("properties", {}))
        extensions = {text(fields(entry)[1]): fields(fields(entry)[2][0])[2][0] for entry in schema.get(31, [])}
        shown = {key: json.loads(value) for key, value in extensions.items()}
        assert shown == {key: value for key, value in two["definitions"][name].items() if key.startswith("x-")}


def text(values: list[bytes]) -> str:
    return values[0].decode()


def fields(message: bytes) -> dict[int, list[bytes]]:
    """The length-delimited fields of a message by their number; the others are passed over."""
    found: dict[int, list[bytes]] = {}
    unknown: Any = UnknownFieldSet(Empty.FromString(message))
    for each in unknown:
        if each.wire_type == LENGTH_DELIMITED:
            found.setdefault(each.field_number, []).append(each.data)
    return found
