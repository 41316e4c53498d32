"""Bootstrap credentials between real processes: bound, spent, revoked, replaced, attested by the cluster's own issuer."""

import json
import re
from base64 import b64decode
from pathlib import Path

import pytest
import yaml

from machinery.kube.client import KubeClient
from tests.e2e.joining import CREDENTIALS
from tests.e2e.processes import Bench, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

ACCOUNT = ("--attestation-service-account", "default/default")


async def made(bench: Bench, name: str, *arguments: str) -> Path:
    file = bench.folder / f"{name}.bootstrap"
    await bench.hubctl("create", "bootstrap-kubeconfig", "-o", str(file), "--allow-loopback", *arguments)
    return file


async def issuer_of(bench: Bench, cluster: str) -> tuple[str, Path]:
    """The issuer of a hollow cluster's tokens, and its CA."""
    kubeconfig = await bench.hollow(cluster)
    entry = yaml.safe_load(kubeconfig.read_bytes())["clusters"][0]["cluster"]
    ca = bench.folder / f"{cluster}.ca"
    ca.write_bytes(b64decode(entry["certificate-authority-data"]))
    async with await KubeClient.from_file(kubeconfig) as client:
        return str((await client.get("/.well-known/openid-configuration"))["issuer"]), ca


async def said(bench: Bench, words: str) -> None:
    async def found() -> bool:
        return words in bench.logs

    await until(found, what=f"somebody said: {words}")


async def test_a_name_belongs_to_the_cluster_whose_issuer_says_so_and_not_to_who_came_first(bench: Bench) -> None:
    """An impostor with the very credential comes first; the cluster itself comes in, and its name is bound."""
    await bench.hub("--auto-approve=*")
    issuer, ca = await issuer_of(bench, "edge1")
    attest = ("--attest-issuer", issuer, "--attest-ca", str(ca))
    file = await made(bench, "edge1", "--cluster", "edge1", *attest)
    await bench.hollow("impostor")
    (bench.folder / "impostor.kubeconfig").rename(bench.folder / "kept")
    impostor = await bench.program(
        *("impostor", "spoke", "run", "--cluster-name", "edge1", "--kubeconfig", str(bench.folder / "kept")),
        *("--bootstrap-kubeconfig", str(file), *ACCOUNT),
    ).start()
    await said(bench, "attestation failed: the hub's audit log says why")
    assert await bench.hubctl("get", "clusters") == ""
    await bench.spoke("edge1", file, *ACCOUNT)
    cluster = await bench.available("edge1")
    (condition,) = [each for each in cluster["status"]["conditions"] if each["type"] == "ManagedClusterAttested"]
    assert f"system:serviceaccount:default:default of the issuer {issuer}" in condition["message"]
    assert "attestation failed: issuer " in (told := await audited(bench))
    assert "the issuer has no such key" in told
    assert impostor.running
    assert issuer in await bench.hubctl("describe", "bootstrap-credential", await only_credential(bench))


async def audited(bench: Bench) -> str:
    """Why attestations failed, as the operator reads it."""
    records = (await bench.get("/apis/hub.open-cluster-management.io/v1alpha1/auditrecords"))["items"]
    return json.dumps([record for record in records if "attestation failed" in json.dumps(record)])


async def only_credential(bench: Bench) -> str:
    (item,) = (await bench.get(CREDENTIALS))["items"]
    return str(item["metadata"]["name"])


async def test_an_agent_whose_credential_is_spent_or_revoked_goes_on_with_a_new_file(bench: Bench) -> None:
    """It says why, keeps trying, and takes the file that is put in the place without a restart."""
    await bench.hub("--auto-approve=*")
    file = await made(bench, "shops", "--cluster-pattern", "shop-*")
    await bench.spoke("shop-1", file)
    await bench.available("shop-1")
    late = await bench.spoke("shop-2", file)
    await said(bench, "is used up: its only use was spent on other agents")
    spent = await only_credential(bench)
    assert re.search(rf"^{spent} +shop-\* +1/1 +UsedUp", await bench.hubctl("get", "bootstrap-credentials"), re.MULTILINE)
    await bench.hubctl("revoke", "bootstrap-credential", spent)
    await said(bench, "is revoked")
    await made(bench, "shops", "--cluster-pattern", "shop-*")
    await bench.available("shop-2", within=60)
    assert late.running
    assert "Revoked" in await bench.hubctl("describe", "bootstrap-credential", spent)
