"""Certificates of the hub judged by a linter, the files of the CA, and trust while the CA changes."""

import asyncio
import os
import shutil
import ssl
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from pkilint import loader
from pkilint.pkix import certificate, extension, name
from pkilint.validation import ValidationFindingSeverity

from hub.api.certificateauthorities.authority import AuthorityOrder, Phase
from hub.api.certificates import Lifetimes, Profile, Purpose
from hub.issuer.local import LocalIssuer, ServingNames
from hub.replica.serving_certificate import DoorsCertificate, own_certificate
from machinery import identity, pki
from machinery.client.kubeconfig import Credential
from machinery.errors import InvalidError
from machinery.runtime.clock import SystemClock
from machinery.runtime.tls import client_context
from tests.checks import check_refusal
from tests.fakes.authority import Generations

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
UUID_NAME = identity.cluster_name("0f7c9c2e-9f3b-4e9e-8a31-0d2a4f1f6b70")
LONG_NAME = identity.cluster_name("c" * 63)
SHORT_NAME = identity.cluster_name("edge1")
SHARED_RDN = "pkix.rdn_contains_duplicate_attribute_types at certificate.tbsCertificate.subject.rdnSequence.0"
TOO_LONG = "itu.invalid_asn1_syntax at certificate.tbsCertificate.subject."
SINGLE_LABEL = "pkix.invalid_domain_name_syntax at certificate.tbsCertificate.extensions.5.extnValue.subjectAltName.0.dNSName"
SUBJECTS = {
    "agent": (Purpose.AGENT, identity.agent_subject(SHORT_NAME, identity.agent_id("bcdfg"))),
    "agent of a cluster named by a UUID": (Purpose.AGENT, identity.agent_subject(UUID_NAME, identity.agent_id("bcdfg"))),
    "agent of a cluster with the longest name": (Purpose.AGENT, identity.agent_subject(LONG_NAME, identity.agent_id("bcdfg"))),
    "recovery": (Purpose.RECOVERY, identity.recovery_subject(SHORT_NAME, identity.agent_id("bcdfg"))),
    "add-on": (Purpose.ADDON, identity.addon_subject(SHORT_NAME, identity.AddOnName("work"), "work")),
    "bootstrap": (Purpose.BOOTSTRAP, identity.bootstrap_subject(identity.CredentialId("0123456789abcdef"))),
    "operator": (Purpose.OPERATOR, identity.CertificateSubject("admin", frozenset((identity.OPERATOR_GROUP,)))),
    "login": (Purpose.LOGIN, identity.CertificateSubject("ann@corp.example", frozenset(("fleet-viewers",)))),
}


def findings(pem: bytes) -> list[str]:
    """What the linter calls an error, as `code at path`."""
    container = certificate.create_pkix_certificate_validator_container(
        certificate.create_decoding_validators(name.ATTRIBUTE_TYPE_MAPPINGS, extension.EXTENSION_MAPPINGS),
        [
            certificate.create_issuer_validator_container([]),
            certificate.create_validity_validator_container(),
            certificate.create_subject_validator_container([]),
            certificate.create_extensions_validator_container([]),
            certificate.create_spki_validator_container([]),
        ],
    )
    return [
        f"{found.finding.code} at {result.node.path}"
        for result in container.validate(loader.load_certificate(pem, "certificate").root)
        for found in result.finding_descriptions
        if found.finding.severity in (ValidationFindingSeverity.ERROR, ValidationFindingSeverity.FATAL)
    ]


@pytest.fixture
def issuer(tmp_path: Path) -> LocalIssuer:
    return LocalIssuer.open(tmp_path, Lifetimes(), NOW)


def test_linter_finds_nothing_in_any_certificate_but_known_exceptions(
    issuer: LocalIssuer, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for kind, (purpose, subject) in SUBJECTS.items():
        with subtests.test(kind=kind):
            key = pki.public_key_of(pki.generate_key())
            names = ("work.addon.open-cluster-management.io",) if purpose is Purpose.ADDON else ()
            profile = Profile(purpose, subject, key, NOW - timedelta(minutes=5), NOW + timedelta(days=30), dns_names=names)
            found = findings(issuer.issue(profile, pki.random_serial(), NOW).chain)
            too_long = [value for value in (subject.common_name, *subject.organizations) if len(value) > 64]
            others = [each for each in found if not each.startswith(TOO_LONG)]
            assert (len(found) - len(others), others) == (len(too_long), [SHARED_RDN] if len(subject.organizations) > 1 else [])

    assert {purpose for purpose, _ in SUBJECTS.values()} | {Purpose.SERVING} == {*Purpose}, "serving: below"

    (other := tmp_path / "other").mkdir()
    assert findings(issuer.cross_sign(LocalIssuer.open(other, Lifetimes(), NOW).trust_bundle)) == []

    serving_names = ServingNames(("localhost", "hub.example"), ("127.0.0.1",))
    assert findings(issuer.trust_bundle) == []
    assert findings(issuer.serving(tmp_path, serving_names, Lifetimes(), NOW).chain) == [SINGLE_LABEL]


def test_ca_is_created_once_in_private_files_and_kept(issuer: LocalIssuer, tmp_path: Path, subtests: pytest.Subtests) -> None:
    again = LocalIssuer.open(tmp_path, Lifetimes(), NOW)
    assert (issuer.created, again.created, again.trust_bundle) == (True, False, issuer.trust_bundle)
    assert {path.name for path in tmp_path.iterdir()} == {"ca.crt", "ca.key"}
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600

    rows: list[tuple[str, bytes | None, str]] = [
        *(("ca.crt", None, "ca.crt is missing"), ("ca.key", None, "ca.key is missing"), ("ca.key", b"", "cannot be used")),
        *(("ca.key", b"half a key", "cannot be used"), ("ca.key", pki.generate_key(), "cannot be used")),
    ]
    for number, (file, content, message) in enumerate(rows):
        (folder := tmp_path / str(number)).mkdir()
        LocalIssuer.open(folder, Lifetimes(), NOW)
        (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with subtests.test(file=file, content=content):
            check_refusal(InvalidError, LocalIssuer.open, folder, Lifetimes(), NOW, match=message)
            assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_serving_certificate_is_kept_and_leaves_end_with_the_ca(tmp_path: Path) -> None:
    issuer = LocalIssuer.open(tmp_path, Lifetimes(), NOW)
    names, lifetimes = ServingNames(("localhost",), ("127.0.0.1",)), Lifetimes()
    first = issuer.serving(tmp_path, names, lifetimes, NOW)
    assert issuer.serving(tmp_path, names, lifetimes, NOW + timedelta(days=200)) == first
    assert issuer.serving(tmp_path, replace(names, dns_names=("localhost", "more")), lifetimes, NOW) != first
    second = issuer.serving(tmp_path, names, lifetimes, NOW)
    assert issuer.serving(tmp_path, names, lifetimes, NOW + timedelta(days=260)) != second
    after = issuer.serving(tmp_path, names, lifetimes, NOW)  # the clock was ahead
    assert [pki.parse_certificate(each.chain).not_before for each in (second, after)] == [NOW - timedelta(hours=48)] * 2
    assert issuer.serving(tmp_path, names, lifetimes, NOW - timedelta(days=9)) == after, (
        "the CA begins later: no new one is better"
    )
    assert stat.S_IMODE(os.stat(tmp_path / "serving.key").st_mode) == 0o600  # noqa: PTH116 - the mode alone

    for lives, hours in ((1, 0), (24, 0), (365 * 24, 3650 * 24 - 12)):  # short, and the last of the CA
        own, short = ServingNames((f"for-{lives}-hours",)), replace(lifetimes, serving=timedelta(hours=lives))
        made = issuer.serving(tmp_path, own, short, at := NOW + timedelta(hours=hours))
        assert issuer.serving(tmp_path, own, short, at + timedelta(seconds=2)) == made, "not made again at each look"

    issuer, key = LocalIssuer.open(tmp_path, Lifetimes(), NOW), pki.public_key_of(pki.generate_key())
    profile = Profile(
        Purpose.AGENT, identity.agent_subject(SHORT_NAME, identity.agent_id("a")), key, NOW, NOW + timedelta(days=4000)
    )
    issued = issuer.issue(profile, pki.random_serial(), NOW)
    end = pki.parse_certificate(issuer.trust_bundle).not_after
    assert pki.parse_certificate(issued.chain).not_after == issued.not_after == end == NOW + timedelta(days=3650)


NAMES = ServingNames(("localhost",), ("127.0.0.1",))
OLD, NEW = 0, 1
PHASES = {
    "distributing": ((Phase.ISSUING, Phase.DISTRIBUTING), OLD),
    "issuing": ((Phase.OUTGOING, Phase.ISSUING), NEW),
    "retiring": ((Phase.RETIRING, Phase.ISSUING), NEW),
    "retired": ((Phase.RETIRED, Phase.ISSUING), NEW),
}


@dataclass
class Doors:
    """Both doors' TLS, and the material that they share."""

    generations: Generations
    certificate: DoorsCertificate
    grpc_port: int
    https_port: int

    def credential(self, index: int) -> Credential:
        return certificate_of(self.generations.keys[self.generations.authorities[index].id])

    async def over_grpc(self, trust: bytes, shown: Credential) -> bool:
        """Whether a client that trusts only this is let in, and lets itself in."""
        credentials = grpc.ssl_channel_credentials(trust, shown.key, shown.chain)
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with aio.secure_channel(f"localhost:{self.grpc_port}", credentials, options) as channel:
            call: Any = channel.unary_unary("/nothing/here")
            try:
                await call(b"", timeout=60, wait_for_ready=False)
            except aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.UNIMPLEMENTED
        raise AssertionError("there is no such method")

    async def over_https(self, trust: bytes, shown: Credential) -> bool:
        context = client_context(trust, shown.chain, shown.key)
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.https_port, ssl=context, server_hostname="localhost"
            )
            answer = await reader.read(1)  # with TLS 1.3 the server reports a refused certificate after the handshake
        except (ssl.SSLError, ConnectionError):
            return False
        writer.close()
        return answer == b"."

    async def over_openssl(self, folder: Path, trust: bytes) -> bool:
        """As the openssl program verifies, which has no way but the chain that is shown."""
        file = folder / "trust.pem"
        file.write_bytes(trust)
        asked = ["s_client", "-connect", f"127.0.0.1:{self.https_port}", "-CAfile", str(file), "-verify_return_error"]
        program = await asyncio.create_subprocess_exec(
            "openssl", *asked, "-verify_hostname", "localhost", stdin=subprocess.DEVNULL, stdout=-3, stderr=-3
        )
        return await program.wait() == 0

    async def everywhere(self, folder: Path, trust: bytes, shown: Credential) -> set[bool]:
        """The results of gRPC's TLS, of Python's, and of openssl's where it is installed."""
        found = {await self.over_grpc(trust, shown), await self.over_https(trust, shown)}
        return found | ({await self.over_openssl(folder, trust)} if shutil.which("openssl") else set())


def certificate_of(one: LocalIssuer) -> Credential:
    now, key, lifetimes = SystemClock().now(), pki.generate_key(), Lifetimes()
    begins, ends = now - lifetimes.backdate, now + lifetimes.bootstrap
    profile = Profile(Purpose.OPERATOR, identity.CertificateSubject("somebody"), pki.public_key_of(key), begins, ends)
    return Credential(one.issue(profile, pki.random_serial(), now).chain, key)


async def _greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b".")
    await writer.drain()
    writer.close()


@asynccontextmanager
async def doors(folder: Path) -> AsyncIterator[Doors]:
    from hub.grpc_door.server import OPTIONS, credentials_of  # noqa: PLC0415 - what the door does with the material

    generations = Generations()
    generations.add(Phase.ISSUING)
    source = own_certificate(folder, NAMES, generations.issuer, Lifetimes(), SystemClock())
    shown, server = DoorsCertificate(source, generations.issuer, SystemClock()), aio.server(options=OPTIONS)
    port = server.add_secure_port("127.0.0.1:0", credentials_of(shown.serving))
    await server.start()
    https = await asyncio.start_server(_greet, "127.0.0.1", 0, ssl=shown.serving.context)
    try:
        yield Doors(generations, shown, port, https.sockets[0].getsockname()[1])
    finally:
        https.close()
        await https.wait_closed()
        await server.stop(0)


@pytest.mark.parametrize("phase", PHASES)
async def test_who_knows_either_ca_believes_the_hub_and_the_phase_says_whom_doors_let_in(tmp_path: Path, phase: str) -> None:
    async with doors(tmp_path) as at:
        at.generations.add(Phase.DISTRIBUTING)
        phases, signs = PHASES[phase]
        for index, each in enumerate(phases):
            at.generations.turn(index, each)
        at.generations.take()
        old, new = at.generations.authorities
        good = at.credential(signs)
        trusts = [old.certificate, old.certificate + new.certificate, *[new.certificate] * (signs == NEW)]
        for trust in trusts:
            assert await at.everywhere(tmp_path, trust, good) == {True}
        of_old, let_in = at.credential(OLD), phase != "retired"
        assert [await over(trusts[1], of_old) for over in (at.over_grpc, at.over_https)] == [let_in] * 2


async def test_who_slept_through_two_changes_believes_the_hub_still(tmp_path: Path) -> None:
    async with doors(tmp_path) as at:
        at.generations.turn(0, Phase.RETIRING)
        at.generations.add(Phase.OUTGOING)
        at.generations.add(Phase.ISSUING)
        for each in at.generations.authorities:
            for shown in (0, 2):
                assert await at.everywhere(tmp_path, each.certificate, at.credential(shown)) == {True}


async def test_by_a_compromised_ca_nobody_believes_the_hub_and_nobody_comes_in(tmp_path: Path) -> None:
    async with doors(tmp_path) as at:
        at.generations.turn(0, Phase.RETIRED, compromised=True)
        at.generations.add(Phase.ISSUING)
        old, new = at.generations.authorities
        assert await at.everywhere(tmp_path, old.certificate, at.credential(NEW)) == {False}
        assert await at.over_grpc(new.certificate, at.credential(NEW))
        assert not any([await over(new.certificate, at.credential(OLD)) for over in (at.over_grpc, at.over_https)])


async def test_streams_outlive_every_exchange(tmp_path: Path) -> None:
    async with doors(tmp_path) as at:
        context = client_context(at.generations.issuer.trust_bundle)
        begun, ended = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            begun.set()
            writer.write(await reader.readline())
            writer.close()
            ended.set()

        lasting = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=at.certificate.serving.context)
        port = lasting.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        await begun.wait()
        before = at.certificate.serving.material.chain
        at.generations.turn(0, Phase.RETIRED, order=AuthorityOrder.COMPROMISED)
        at.generations.add(Phase.ISSUING)
        assert at.certificate.serving.material.chain != before
        writer.write(b"still here\n")
        assert await reader.readline() == b"still here\n"
        await ended.wait()
        writer.close()
        lasting.close()
