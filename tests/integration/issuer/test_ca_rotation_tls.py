"""Who believes whom while the hub's CA changes: real handshakes of Python's, gRPC's and openssl's TLS."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from hub.domain.authority import Phase, Wish
from hub.domain.certificate import Lifetimes, Profile, Purpose
from hub.issuer import ServingNames
from hub.issuer.local import LocalIssuer
from hub.serving import DoorsCertificate, own_certificate
from machinery import pki
from machinery.clock import SystemClock
from machinery.identity import Subject
from machinery.kubeconfig import Credential
from machinery.tls import client_context
from tests.fakes.rotating import Generations

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
        one = self.generations.keys[self.generations.authorities[index].id]
        return certificate_of(one)

    async def over_grpc(self, trust: bytes, shown: Credential) -> bool:
        """Whether a client that trusts only this is let in, and lets itself in."""
        credentials = grpc.ssl_channel_credentials(trust, shown.key, shown.chain)
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with aio.secure_channel(f"localhost:{self.grpc_port}", credentials, options) as channel:
            call: Any = channel.unary_unary("/nothing/here")
            try:
                await call(b"", timeout=20, wait_for_ready=False)
            except aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.UNIMPLEMENTED
        raise AssertionError("there is no such method")

    async def over_https(self, trust: bytes, shown: Credential) -> bool:
        context = client_context(trust, shown.chain, shown.key)
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.https_port, ssl=context, server_hostname="localhost"
            )
            answer = await reader.read(1)  # with TLS 1.3 the server tells of a certificate that it refuses after the handshake
        except ssl.SSLError:
            return False
        except ConnectionError:
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
        async with asyncio.timeout(20):
            return await program.wait() == 0


def certificate_of(one: LocalIssuer) -> Credential:
    now, key, lifetimes = SystemClock().now(), pki.generate_key(), Lifetimes()
    profile = Profile(
        purpose=Purpose.OPERATOR,
        subject=Subject("somebody"),
        public_key=pki.public_key_of(key),
        not_before=now - lifetimes.backdate,
        not_after=now + lifetimes.bootstrap,
    )
    return Credential(one.issue(profile, pki.random_serial(), now).chain, key)


async def _greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b".")
    await writer.drain()
    writer.close()


@asynccontextmanager
async def doors(folder: Path) -> AsyncIterator[Doors]:
    from hub.rpc.door import OPTIONS, credentials_of  # noqa: PLC0415 - what the door does with the material

    generations = Generations()
    generations.add(Phase.ISSUING)
    source = own_certificate(folder, NAMES, generations.issuer, Lifetimes(), SystemClock())
    shown = DoorsCertificate(source, generations.issuer, SystemClock())
    server = aio.server(options=OPTIONS)
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
async def test_who_knows_either_ca_believes_the_hub_and_whom_the_doors_let_in_follows_the_phase(
    tmp_path: Path, phase: str
) -> None:
    async with doors(tmp_path) as at:
        at.generations.add(Phase.DISTRIBUTING)
        phases, signs = PHASES[phase]
        for index, each in enumerate(phases):
            at.generations.turn(index, each)
        at.generations.take()
        old, new = at.generations.authorities
        good = at.credential(signs)
        trusts = [old.certificate, old.certificate + new.certificate]
        trusts += [new.certificate] if signs == NEW else []
        for trust in trusts:
            assert await at.over_grpc(trust, good)
            assert await at.over_https(trust, good)
            if shutil.which("openssl"):
                assert await at.over_openssl(tmp_path, trust)
        of_old = at.credential(OLD)
        let_in = phase != "retired"
        assert await at.over_grpc(trusts[1], of_old) is let_in
        assert await at.over_https(trusts[1], of_old) is let_in


async def test_who_slept_through_two_changes_believes_the_hub_still(tmp_path: Path) -> None:
    async with doors(tmp_path) as at:
        at.generations.turn(0, Phase.RETIRING)
        at.generations.add(Phase.OUTGOING)
        at.generations.add(Phase.ISSUING)
        for each in at.generations.authorities:
            assert await at.over_grpc(each.certificate, at.credential(2))
            assert await at.over_https(each.certificate, at.credential(0))
            if shutil.which("openssl"):
                assert await at.over_openssl(tmp_path, each.certificate)


async def test_by_a_compromised_ca_nobody_believes_the_hub_and_nobody_comes_in(tmp_path: Path) -> None:
    async with doors(tmp_path) as at:
        at.generations.turn(0, Phase.RETIRED, compromised=True)
        at.generations.add(Phase.ISSUING)
        old, new = at.generations.authorities
        assert not await at.over_grpc(old.certificate, at.credential(NEW))
        assert not await at.over_https(old.certificate, at.credential(NEW))
        assert await at.over_grpc(new.certificate, at.credential(NEW))
        assert not await at.over_grpc(new.certificate, at.credential(OLD))
        assert not await at.over_https(new.certificate, at.credential(OLD))
        if shutil.which("openssl"):
            assert not await at.over_openssl(tmp_path, old.certificate)


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
        at.generations.turn(0, Phase.RETIRED, wish=Wish.COMPROMISED)
        at.generations.add(Phase.ISSUING)
        assert at.certificate.serving.material.chain != before
        writer.write(b"still here\n")
        async with asyncio.timeout(10):
            assert await reader.readline() == b"still here\n"
            await ended.wait()
        writer.close()
        lasting.close()
