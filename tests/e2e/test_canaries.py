"""Secrets are planted in and taken from real programs, on paths that succeed and paths that fail: nothing shows them."""

import asyncio
import json
import secrets
import ssl
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from machinery.client.kubeconfig import read_kubeconfig
from machinery.client.rest import KubeClient
from tests.e2e.processes import CLUSTERS, REQUESTS, Bench, asked_for_debug, until

SHORTEST = 16  # bytes; what is shorter would be found by chance


def needles(secret: bytes) -> Iterator[bytes]:
    """What gives a secret away. Of a PEM file each line is a secret of its own: logs break and escape the file."""
    if b"-----BEGIN" in secret:
        body = [line for line in secret.splitlines() if b"-----" not in line]
        yield from (line for line in body if len(line) >= SHORTEST)
        yield from _encoded(secret[40:90])
        return
    yield secret
    yield secret.hex().encode()
    yield from _encoded(secret)


def _encoded(secret: bytes) -> Iterator[bytes]:
    """Base64 of the secret wherever it stands in something longer: at each of three offsets, without the ends."""
    for offset in range(3):
        yield b64encode(b"\0" * offset + secret)[4 : -4 - offset]


@dataclass
class Canaries:
    """By what each is called: the secret."""

    secrets: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str, secret: bytes | str) -> None:
        raw = secret if isinstance(secret, bytes) else secret.encode()
        assert len(raw) >= SHORTEST, f"{name} is too short to be looked for"
        self.secrets[name] = raw

    def add_kubeconfig(self, name: str, path: Path) -> None:
        """The key and the token of each user of a kubeconfig."""
        for entry in yaml.safe_load(path.read_text())["users"]:
            user = entry["user"]
            if "client-key-data" in user:
                self.add(f"key in {name}", b64decode(user["client-key-data"]))
            if "token" in user:
                self.add(f"token in {name}", user["token"])

    def add_keys(self, folder: Path) -> None:
        """Every private key that a program has written below a folder, and every key file."""
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue  # a new version of a file on its way to its name, under which it was or will be read
            if b"PRIVATE KEY-----" in content:
                self.add(str(path.relative_to(folder)), content)
            elif path.suffix == ".key" and len(content) >= SHORTEST:
                self.add(str(path.relative_to(folder)), content.strip())

    def found(self, places: Mapping[str, bytes]) -> list[str]:
        """Which secret stands where."""
        wanted = {name: set(needles(secret)) for name, secret in self.secrets.items()}
        return [
            f"{name} in {place}"
            for place, content in places.items()
            for name, parts in wanted.items()
            if any(part in content for part in parts)
        ]


pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "RequestResponse"}]}
LOUD, DEFAULT = "--log-level=debug", "/api/v1/namespaces/default"
HUB = "/apis/hub.open-cluster-management.io/v1alpha1"
LOGIN = "/apis/login.open-cluster-management.io/v1alpha1"
SHOWN = (*(CLUSTERS, REQUESTS, "/api/v1/events", "/api/v1/configmaps"), *("/api/v1/namespaces", "/api/v1/serviceaccounts"))


def planted(canaries: Canaries, name: str) -> str:
    value = secrets.token_urlsafe(32)
    canaries.add(name, value)
    return value


async def asked(bench: Bench, method: str, path: str, body: Any = None) -> bytes:
    """The answer to the administrator, whatever it is."""
    async with await KubeClient.from_file(bench.admin) as client:
        return bytes((await client.raw(method, path, body=body)).body)


async def asked_with(token: str, bench: Bench, path: str) -> int:
    """The status of the answer to somebody with a token."""
    hub = read_kubeconfig(bench.admin).cluster
    trust = ssl.create_default_context(cadata=(hub.certificate_authority or b"").decode())
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.get(hub.server + path, headers=headers, ssl=trust) as answer:
        return answer.status


async def use_secrets(bench: Bench, canaries: Canaries) -> None:
    """Secrets that are written, changed, refused and read."""
    value, other = planted(canaries, "Secret"), planted(canaries, "changed Secret")
    refused = planted(canaries, "refused Secret")
    kind = {"apiVersion": "v1", "kind": "Secret"}
    secret = {**kind, "metadata": {"name": "canary"}, "data": {"key": b64encode(value.encode()).decode()}}
    await asked(bench, "POST", f"{DEFAULT}/secrets", secret)
    await asked(bench, "PUT", f"{DEFAULT}/secrets/canary", {**secret, "data": {}, "stringData": {"key": other}})
    bad = {**secret, "metadata": {"name": "NOT VALID"}, "stringData": {"key": refused}, "data": {"a b": refused}}
    await asked(bench, "POST", f"{DEFAULT}/secrets", bad)
    await asked(bench, "POST", f"{DEFAULT}/secrets", {**secret, "data": refused})
    await asked(bench, "GET", f"{DEFAULT}/secrets/canary")


async def use_tokens(bench: Bench, canaries: Canaries) -> None:
    """Tokens that are given, guessed, reviewed and exchanged."""
    guessed, forged = planted(canaries, "guessed token"), "eyJhbGciOiJFUzI1NiIsImtpZCI6IngifQ.e30." + secrets.token_urlsafe(48)
    canaries.add("forged token", forged)
    for token in (guessed, forged):
        assert await asked_with(token, bench, SHOWN[0]) == 401
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "canary"}}
    await asked(bench, "POST", f"{DEFAULT}/serviceaccounts", account)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    good = json.loads(await asked(bench, "POST", f"{DEFAULT}/serviceaccounts/canary/token", request))["status"]["token"]
    canaries.add("token of a ServiceAccount", good.rpartition(".")[2])
    assert await asked_with(good, bench, SHOWN[0]) == 403
    for token in (guessed, good):
        spec = {"token": token, "authenticator": {"kind": "ServiceAccount"}}
        kind = {"apiVersion": LOGIN.removeprefix("/apis/"), "kind": "TokenCredentialRequest", "spec": spec}
        exchanged = json.loads(await asked(bench, "POST", f"{LOGIN}/tokencredentialrequests", kind))
        if key := exchanged.get("status", {}).get("credential", {}).get("clientKeyData"):
            canaries.add("key of a login", key)
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        await asked(bench, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)


async def use_credentials(bench: Bench, canaries: Canaries) -> None:
    """Bootstrap credentials: good, broken, revoked."""
    tokens = await bench.bootstrap("c2", "--token", name="tokens")
    canaries.add_kubeconfig("a bootstrap kubeconfig with a token", tokens)
    broken = bench.folder / "broken.bootstrap"
    broken.write_text(tokens.read_text().replace("clusters:", "clusters: [}"))
    cluster = bench.folder / "c1.kubeconfig"
    arguments = ("spoke", "doctor", "--kubeconfig", str(cluster), "--cluster-name", "c2", "--bootstrap-kubeconfig")
    doctors = [bench.program(f"doctor-{file.stem}", *arguments, str(file)) for file in (broken, tokens)]
    await asyncio.gather(*(doctor.start() for doctor in doctors))
    await asyncio.gather(*(doctor.ended() for doctor in doctors))


async def fail_to_start(bench: Bench, canaries: Canaries) -> None:
    """A hub whose database is not there, and one whose settings are wrong."""
    password = planted(canaries, "password of the database")
    url = f"postgresql://hub:{password}@127.0.0.1:1/hub"

    async def start(name: str, settings: str) -> int:
        file = bench.folder / f"{name}.yaml"
        file.write_text(settings)
        data = f"--data-dir={bench.folder / name}"
        hub = bench.program(f"hub-{name}", "hub", "serve", data, f"--config={file}", "--grpc-listen=127.0.0.1:0")
        return await (await hub.start()).ended()

    codes = await asyncio.gather(
        start("unreachable", f"database-url: {url}\nstart-timeout: 1s\n"),
        start("wrong", f"database-url: {url.replace('postgresql', 'mysql')}\nlog-level: none\n"),
        start("unknown", f"database-url: {url}\ndatabase-pasword: {password}\n"),
    )
    assert 0 not in codes


async def have_another_ca(bench: Bench) -> None:
    """One more CA, with a key of its own."""

    def keys() -> int:
        return sum(b"PRIVATE KEY-----" in path.read_bytes() for path in bench.data.rglob("*") if path.is_file())

    before = keys()
    await bench.hubctl("ca", "rotate")
    await until(lambda: keys() > before, what="the next CA has a key")


async def shown(bench: Bench, debug: Path) -> dict[str, bytes]:
    """Everything that the hub shows to authorized users."""
    places = {path: await asked(bench, "GET", path) for path in SHOWN}
    for resource in json.loads(await asked(bench, "GET", HUB))["resources"]:
        if "list" in resource["verbs"]:
            places[resource["name"]] = await asked(bench, "GET", f"{HUB}/{resource['name']}")
    places["the debug report"] = (await asked_for_debug(debug)).encode()
    places["hubctl ca status"] = (await bench.hubctl("ca", "status")).encode()
    for command in ("bootstrap-credentials", "clusters", "csr"):
        places[f"hubctl get {command}"] = (await bench.hubctl("get", command, "-o", "yaml")).encode()
    places["hubctl describe"] = (await bench.hubctl("describe", "cluster", "c1")).encode()
    return places


async def test_no_secret_is_shown_anywhere(bench: Bench) -> None:
    bench.fresh = True
    policy, trail, debug = bench.folder / "policy.yaml", bench.folder / "audit.log", bench.folder / "debug.socket"
    policy.write_text(json.dumps(POLICY))
    flags = (f"--audit-policy-file={policy}", f"--audit-log-path={trail}", f"--debug-socket={debug}")
    hub = await bench.hub(LOUD, *flags, "--auto-approve=c1", "--default-lease-duration=2s")
    canaries = Canaries()
    agent = await bench.spoke("c1", None, LOUD)
    await bench.available("c1")
    bench.fresh = False  # of what follows no process is looked at
    await asyncio.gather(*(use(bench, canaries) for use in (use_secrets, use_tokens, use_credentials, fail_to_start)))
    await have_another_ca(bench)
    canaries.add_keys(bench.data)
    canaries.add_keys(bench.folder / "c1.credentials")
    for name, file in (("the administrator's", bench.admin), ("a bootstrap", bench.folder / "c1.bootstrap")):
        canaries.add_kubeconfig(f"{name} kubeconfig", file)
    canaries.add_kubeconfig("the cluster's kubeconfig", bench.folder / "c1.kubeconfig")

    files = [Path(f"/proc/{each.pid}/{file}") for each in bench.programs if each.running for file in ("cmdline", "environ")]
    places = await shown(bench, debug) | {str(file): file.read_bytes() for file in files}
    await bench.hubctl("revoke", "cluster", "c1")
    await agent.stop()
    assert await hub.stop() == 0
    places |= {f"log of {program.name}": program.log.read_bytes() for program in bench.programs}
    places |= {"the audit's file": trail.read_bytes()}
    places |= {path.name: path.read_bytes() for path in bench.data.glob("hub.db*")}
    assert canaries.found(places) == []
    assert len(canaries.secrets) > 15, sorted(canaries.secrets)
    assert min(len(content) for name, content in places.items() if name.startswith("log of hub")) > 100
