"""Anonymous clients that send the worst requests they can make to a hub, as a program of its own.

    python -m tests.e2e.strangers URL CLIENTS

Each client has one connection and sends as fast as it is answered, until the program is ended. It prints the statuses then.
"""

import asyncio
import gzip
import json
import signal
import ssl
import sys
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any
from urllib.parse import urlencode

import aiohttp

from bench.bodies import worst
from machinery import pki
from machinery.identity import CertificateSubject

CLUSTERS = "/apis/cluster.open-cluster-management.io/v1/managedclusters"
LOGINS = "/apis/login.open-cluster-management.io/v1alpha1/tokencredentialrequests"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
STRANGERS = 64 * 1024
PATCHES = ("json-patch+json", "merge-patch+json", "strategic-merge-patch+json", "apply-patch+yaml")

Request = tuple[str, str, dict[str, str], bytes]


def requests() -> Iterator[Request]:
    """Method, path, headers and body."""
    for size in (STRANGERS, 3 * 1024 * 1024):
        for _, media, body, _ in worst(size):
            for path in (LOGINS, CLUSTERS):
                yield "POST", path, {"Content-Type": media}, body
    packed = gzip.compress(bytes(64 * 1024 * 1024))
    yield "POST", LOGINS, {"Content-Type": "application/json", "Content-Encoding": "gzip"}, packed
    token = {"spec": {"token": "x" * 50_000, "authenticator": {"kind": "ServiceAccount"}}}
    yield "POST", LOGINS, {"Content-Type": "application/json"}, json.dumps(token).encode()
    chosen = ",".join(f"v{number}" for number in range(10))
    questions = {
        "labelSelector": ",".join(f"k{number} notin ({chosen})" for number in range(100)),
        "fieldSelector": ",".join(f"spec.taints.t{number}!=b" for number in range(100)),
        "where": "||".join(f'claims["c{number}"]=="a"' for number in range(70)),
        "sortBy": ",".join(["-version", "name"] * 50),
    }
    for name, value in (*questions.items(), ("where", "(" * 10_000), ("labelSelector", "a," * 100_000)):
        yield "GET", f"{CLUSTERS}?{urlencode({name: value})}", {}, b""
    for kind in PATCHES:
        yield "PATCH", f"{CLUSTERS}/edge", {"Content-Type": f"application/{kind}"}, b"[" * STRANGERS
    for number in range(20):
        names = [f"n{number}-{each}.example.org" for each in range(50)]
        request = {
            "kind": "CertificateSigningRequest",
            "apiVersion": "certificates.k8s.io/v1",
            "spec": {"request": pki.build_request(CertificateSubject("x" * 60, frozenset(names)), pki.generate_key()).decode()},
        }
        yield "POST", REQUESTS, {"Content-Type": "application/json"}, json.dumps(request).encode()
    for number in range(200):
        yield "GET", CLUSTERS, {"Authorization": f"Bearer guess.{number}"}, b""


async def stranger(server: str, made: list[Request], seed: int, found: Counter[Any]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    order = Random(seed)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=1)) as session:
        while True:
            method, path, headers, body = order.choice(made)
            try:
                async with session.request(method, server + path, data=body, headers=headers) as answer:
                    await answer.read()
                    found[answer.status] += 1
            except (aiohttp.ClientError, OSError) as error:
                found[type(error).__name__] += 1
                await asyncio.sleep(0.01)


async def flood(server: str, clients: int) -> None:
    found: Counter[Any] = Counter()
    made = list(requests())
    tasks = [asyncio.create_task(stranger(server, made, seed, found)) for seed in range(clients)]
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    sys.stdout.write("sending\n")
    sys.stdout.flush()
    await ended.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    sys.stdout.write(json.dumps({str(status): count for status, count in found.items()}))


if __name__ == "__main__":
    asyncio.run(flood(sys.argv[1], int(sys.argv[2])))
