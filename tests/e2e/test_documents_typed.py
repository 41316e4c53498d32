"""Every command of the documents is typed, in order, by somebody who has what the document says he has."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.processes import Bench, free_port
from tests.e2e.reading import ROOT, Page, Reader, files, typed

pytestmark = [pytest.mark.e2e, pytest.mark.kubectl, pytest.mark.timeout(180)]

ENGINE = "needs a container engine; tests/e2e/test_composed.py starts the same as plain processes"
CLUSTER = "needs a Kubernetes cluster; tests/integration/charts/test_installing.py runs these in a hollow one"
INSTALLS = "installs this very project; every fresh clone does it before this test"
ISSUER = "needs an issuer of tokens; tests/e2e/test_login.py has one and types the same"
NO_PODS = "hollow clusters run no pod; tests/e2e/test_joining_by_manifests.py starts the agent with what was applied"
CREDENTIAL = "$(hubctl get bootstrap-credentials -o name | tail -1 | cut -d/ -f2)"
AGENT = "$(hubctl describe cluster edge1 | grep -om1 'management:edge1:[a-z0-9]*' | cut -d: -f3)"
SERIAL = (
    "$(kubectl get csr -o jsonpath='{.items[0].status.certificate}' | base64 -d | openssl x509 -noout -serial | cut -d= -f2)"
)
REPLICA = "$(hubctl get replicas -o name | cut -d/ -f2)"
AUTHORITY = "$(hubctl ca status | awk '$2 == \"Retiring\" {print $1}')"
ON_THIS_MACHINE = {"create bootstrap-kubeconfig ": "create bootstrap-kubeconfig --allow-loopback "}
"""What the documents write for hubs that others reach."""

PAGES: Mapping[str, Page] = {
    "README.md": Page(
        hub=None,
        elsewhere={
            "make ": "is what CI does",
            "hub backup hub.zip": "needs a passphrase; docs/how-to/back-up-and-restore.md makes one, and is typed",
            "python3 -m venv": INSTALLS,
            ".venv/bin/pip": INSTALLS,
            "export PATH": INSTALLS,
            "helm ": CLUSTER,
            "docker ": ENGINE,
            "kubectl -n muster": CLUSTER,
            "hubctl login": ISSUER,
            "kubectl --kubeconfig me.kubeconfig": ISSUER,
            "spoke run --bootstrap-kubeconfig hub-a.kubeconfig": "needs two hubs; tests/e2e/test_hubs.py has them",
        },
    ),
    "docs/how-to/approval-rules.md": Page(),
    "docs/how-to/ask-the-inventory.md": Page(joined=("edge1",)),
    "docs/how-to/back-up-and-restore.md": Page(),
    "docs/how-to/upgrade.md": Page(),
    "docs/how-to/bootstrap-credentials.md": Page(
        joined=("edge9",),
        spelled={
            "0123456789abcdef": CREDENTIAL,
            "kubectl get --raw": "kubectl --kubeconfig ../edge9.kubeconfig get --raw",
            "--cluster edge1 -o edge1.kubeconfig": "--cluster edge1 -o first.kubeconfig",
            "oidc.example.com/edge1 -o edge1.kubeconfig": "oidc.example.com/edge1 -o second.kubeconfig",
            "| jq -r .issuer": "| grep issuer",
            "| jq ": "| cat #",
        },
    ),
    "docs/how-to/diagnose-a-cluster.md": Page(joined=("edge1",)),
    "docs/how-to/look-at-a-hub.md": Page(hub=()),
    "docs/how-to/work-with-hubctl.md": Page(
        joined=("edge1",),
        elsewhere={"kubectl hub": "needs its program on the PATH; tests/integration/door/test_hubctl_shells.py types it"},
    ),
    "docs/how-to/drain-a-replica.md": Page(
        spelled={"hub-0": REPLICA, "--timeout": "--force --timeout"}
    ),  # no other one is there
    "docs/how-to/join-a-cluster.md": Page(
        before=(
            "hollow serve --name edge1 --kubeconfig-out edge1.kubeconfig",
            "hollow serve --name edge2 --kubeconfig-out edge2.kubeconfig",
            "until [ -f edge1.kubeconfig ] && [ -f edge2.kubeconfig ]; do sleep 0.1; done",
        ),
        spelled={"hubctl join ": "hubctl join --allow-loopback "},
        elsewhere={
            "helm ": CLUSTER,
            "hubctl get clusters -w": NO_PODS,
            "hubctl accept": NO_PODS,
            "hubctl certificate": NO_PODS,
        },
    ),
    "docs/how-to/on-kubernetes.md": Page(elsewhere={"helm ": CLUSTER, "kubectl -n muster": CLUSTER}),
    "docs/how-to/kubernetes-ca.md": Page(
        elsewhere={"helm ": CLUSTER, "kubectl get credentialissuer hub": "needs a cluster; tests/e2e/test_kube_cert.py has one"}
    ),
    "docs/how-to/logging-in.md": Page(
        before=("kubectl apply -f corp.yaml -f iam.yaml",),
        spelled={"LS0t...": ""},
        elsewhere={
            "hubctl login": ISSUER,
            "kubectl --kubeconfig me": ISSUER,
            "hubctl --kubeconfig me": ISSUER,
            "hubctl logout": ISSUER,
        },
    ),
    "docs/how-to/revocation.md": Page(
        joined=("edge1",),
        spelled={
            "revoke agent edge1 bcdfg": f"revoke agent edge1 {AGENT}",
            "5f3a09": SERIAL,
            "0123456789abcdef": CREDENTIAL,
            "ca.crt https://hub.example.com:6443": "$(dirname $KUBECONFIG)/ca.crt https://$HUB_HTTPS_LISTEN",
        },
    ),
    "docs/how-to/rotating-the-ca.md": Page(
        hub=("--ca-rotation-patience=2s",),  # what people have holds a step up for a day
        joined=("edge1",),
        spelled={"proceed ID": f"proceed {AUTHORITY}", "--compromised": "--compromised --yes --within 5s", "FOLDER": "keys"},
    ),
    "docs/how-to/the-past.md": Page(joined=("edge1",)),
    "docs/how-to/traces-and-logs.md": Page(
        elsewhere={
            "kubectl exec ": CLUSTER,
            "pip install ": INSTALLS,
            "hub serve --trace-endpoint": "needs a collector; tests/e2e/test_tracing.py has one",
            "spoke run --trace-endpoint": "needs a collector; tests/e2e/test_tracing.py has one",
        }
    ),
    "docs/tutorial/first-fleet.md": Page(hub=None),
    "docs/how-to/watching-a-hub.md": Page(
        elsewhere={"hub serve ": "a hub is there already; tests/e2e/test_metrics.py runs it"}
    ),
    "docs/how-to/several-hubs.md": Page(
        hub=None,
        before=(
            "hub serve --data-dir hub-a --auto-approve '*' --grpc-listen 127.0.0.1:{port} --https-listen 127.0.0.1:{port}",
            "hub serve --data-dir hub-b --auto-approve '*' --grpc-listen 127.0.0.1:{port} --https-listen 127.0.0.1:{port}",
            "hollow serve --name edge-1 --kubeconfig-out edge-1.kubeconfig",
        ),
        elsewhere={"make demo": "tests/e2e/test_demo.py runs it"},
    ),
}
UNREAD = sorted({str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]})


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def spelled(command: str, page: Page) -> str:
    for written, meant in {**ON_THIS_MACHINE, **page.spelled}.items():
        command = command.replace(written, meant)
    return command


@pytest.mark.parametrize("name", sorted(PAGES))
async def test_what_a_document_tells_to_type_works(name: str, tmp_path: Path) -> None:
    page, text = PAGES[name], text_of(name)
    bench = Bench(tmp_path, data_name="home/.local/share/muster")
    reader = Reader.at(tmp_path, (bench.grpc_port, bench.https_port))
    for file, content in files(text):
        (reader.folder / file).write_text(spelled(content, page))
    try:
        if page.hub is not None:
            await bench.hub(*(("--auto-approve=*",) if page.joined else ()), *page.hub)
        for cluster in page.joined:
            await bench.spoke(cluster)
            await bench.available(cluster)
        for command in page.before:
            await reader.types(re.sub(r"\{port\}", lambda _: str(free_port()), command))
        for command in typed(text):
            if not any(command.startswith(beginning) for beginning in page.elsewhere):
                code = next((code for beginning, code in page.code.items() if command.startswith(beginning)), 0)
                await reader.types(spelled(command, page), code=code)
    finally:
        try:
            await reader.leaves()
        finally:
            await bench.close()


@pytest.mark.parametrize("name", [name for name in UNREAD if any(typed(text_of(name)))])
def test_every_document_with_commands_is_typed(name: str) -> None:
    assert name in PAGES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_command_that_is_not_typed_is_there_and_what_does_it_instead_too(name: str) -> None:
    commands = list(typed(text_of(name)))
    for beginning, reason in PAGES[name].elsewhere.items():
        assert any(command.startswith(beginning) for command in commands), f"{name} has no command that begins {beginning}"
        for file in re.findall(r"tests/[\w/]+\.py", reason):
            assert (ROOT / file).exists()
