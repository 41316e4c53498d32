"""Mutated bodies, tokens and metadata for `bench.wirefuzz`."""

import base64
import gzip
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import yaml

from bench.bodies import JSON, PROTOBUF, YAML, protobuf_part
from machinery.apiserver.write import patches, protobuf

MAPS = "/api/v1/namespaces/default/configmaps"
SERVED: tuple[tuple[str, dict[str, Any]], ...] = (
    (MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "labels": {"a": "b"}}, "data": {"k": "v"}}),
    (
        "/apis/cluster.open-cluster-management.io/v1/managedclusters",
        {
            "apiVersion": "cluster.open-cluster-management.io/v1",
            "kind": "ManagedCluster",
            "metadata": {"name": "c", "annotations": {"x/y": "z"}},
            "spec": {"hubAcceptsClient": False, "leaseDurationSeconds": 60, "taints": [{"key": "a", "effect": "NoSelect"}]},
        },
    ),
    (
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"generateName": "r-"},
            "spec": {"request": "eA==", "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]},
        },
    ),
    (
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "l"},
            "spec": {"leaseDurationSeconds": 9, "renewTime": "2026-01-01T00:00:00.000000Z"},
        },
    ),
)
PIECES = (
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\0", b"\xff", b"\n", b"- ", b"? ", b"%TAG ! a\n", b"---\n", b"null"),
    *(b'"\\ud800"', b"1e999", b"-0", b"9" * 400, b"&a ", b"*a", b"!!binary ", b"<<: ", b"[" * 200, b'{"a":' * 200, b"true"),
    *(b'"metadata"', b'"$patch"', b'"finalizers"', b'"op"', b'"/a/-"', b"\x0a\xff\xff", b"\x08" + b"\xff" * 9 + b"\x01"),
)
Sent = tuple[str, str, dict[str, str], bytes]
"""A request: method, path, headers and body."""


def mutated(content: bytes, random: Random) -> bytes:
    """Return `content` with some bytes changed, removed, repeated or inserted; sometimes unchanged."""
    for _ in range(random.randrange(5)):
        begin = random.randrange(len(content) + 1)
        end = min(len(content), begin + random.randrange(1, 30))
        middle = random.choice((b"", content[begin:end] * random.choice((2, 50)), random.choice(PIECES), random.randbytes(4)))
        content = content[:begin] + middle + content[random.choice((begin, end)) :]
    return content[: random.choice((len(content), len(content), random.randrange(len(content) + 1)))]


def written(random: Random) -> Sent:
    """Return a request with a mutated body."""
    path, document = random.choice(SERVED)
    kind = random.choice(("json", "yaml", "protobuf", "json-patch", "merge", "strategic", "apply", "delete"))
    named = f"{path}/{document['metadata'].get('name', 'r')}"
    text = json.dumps(document).encode()
    method, target, media, body = {
        "json": ("POST", path, JSON, text),
        "yaml": ("POST", path, YAML, yaml.safe_dump(document).encode()),
        "protobuf": ("POST", path, PROTOBUF, _protobuf(document, random)),
        "json-patch": ("PATCH", named, patches.JSON_PATCH, json.dumps(list(_operations(random))).encode()),
        "merge": ("PATCH", named, patches.MERGE_PATCH, text),
        "strategic": ("PATCH", named, patches.STRATEGIC_PATCH, text),
        "apply": ("PATCH", f"{named}?fieldManager=fuzz&force=true", patches.APPLY_PATCH, yaml.safe_dump(document).encode()),
        "delete": ("DELETE", f"{named}?dryRun=All", JSON, b'{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}'),
    }[kind]
    headers, body = {"Content-Type": media}, mutated(body, random)
    if random.random() < 0.2:
        body = gzip.compress(body) if random.random() < 0.5 else mutated(gzip.compress(body), random)
        headers |= random.choice(({}, {"Content-Encoding": "gzip"}, {"Content-Encoding": "GZIP, deflate"}))
    if random.random() < 0.1:
        headers["Accept"] = random.choice((YAML, PROTOBUF, "application/json;as=Table;v=v1;g=meta.k8s.io", "*/*;q=x"))
    return method, target, headers, body


def _operations(random: Random) -> Iterator[dict[str, Any]]:
    spec = ("/spec", "/spec/taints/-", "/spec/taints/0")
    paths = ("", "/data", "/data/k", "/metadata/labels", "/metadata/name", *spec, "/a", "a", "/~2")
    values: tuple[Any, ...] = (None, 1, "v", {}, [[]], {"a": {"b": 1}})
    for _ in range(random.choice((1, 3, 40))):
        more = random.choice(({}, {"from": random.choice(paths)}, {"value": random.choice(values)}))
        yield {"op": random.choice((*patches.OPERATIONS, "fly")), "path": random.choice(paths), **more}


def _protobuf(document: dict[str, Any], random: Random) -> bytes:
    meta = protobuf_part(1, document["apiVersion"].encode()) + protobuf_part(2, document["kind"].encode())
    name = protobuf_part(1, b"fuzz")
    return (
        protobuf.MAGIC
        + protobuf_part(1, meta)
        + protobuf_part(2, protobuf_part(1, name) + protobuf_part(2, random.randbytes(random.randrange(40))))
    )


def token(random: Random) -> str:
    """Return a text in the form of a JWT, of a bootstrap token, or of neither. Lone surrogates become invalid UTF-8."""
    header = {"alg": random.choice(("ES256", "none", "RS256", "HS256", 1, None)), "kid": random.choice(("k", "", 1, "x" * 300))}
    claims: dict[str, Any] = {
        name: random.choice(("https://issuer", "system:admin", 1, -1, 1e300, True, None, [], {"a": 1}, "x" * 5000))
        for name in ("iss", "sub", "aud", "exp", "nbf", "iat", "kubernetes.io")
        if random.random() < 0.8
    }
    deep = b"[" * 3_000
    parts = [json.dumps(header).encode(), random.choice((json.dumps(claims).encode(), deep, b"\xff\xfe", b"null"))]
    encoded = [base64.urlsafe_b64encode(mutated(part, random)).rstrip(b"=").decode() for part in parts]
    signature = random.choice(("", "A" * 86, "=", "a b", "é", "A" * 87))
    return random.choice(
        (
            ".".join((*encoded, signature)),
            ".".join((*encoded, signature)) + random.choice((".", "\n", "\0", " x", "=")),
            "." * random.randrange(40),
            "abcdef." + "0123456789abcdef",
            "x" * random.choice((1, 16_384, 70_000)),
            "".join(chr(0xDC80 + random.randrange(0x80)) for _ in range(20)),
            mutated(".".join(encoded).encode(), random).decode("utf-8", "surrogateescape"),
        )
    )


def metadata(random: Random) -> Iterator[tuple[str, Any]]:
    """Yield unusual metadata of a call."""
    texts = ("", "x", "~" * 2_000, "a,b;c=d", "00-" + "f" * 32 + "-" + "f" * 16 + "-01", "-1", "1e9")
    for name in ("traceparent", "tracestate", "x-odd", "authorization", "audit-id", "muster-agent"):
        if random.random() < 0.2:
            yield name, random.choice(texts)
    if random.random() < 0.2:
        yield "odd-bin", random.randbytes(random.randrange(200))
