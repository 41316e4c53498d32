"""The commands of the documents are typed in order: some pages in `make test`, all of them in `make soak`."""

import asyncio
import os
import re
import shlex
import signal
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.e2e.processes import Bench, free_port
from tests.trials import SOAKING, soaked

pytestmark = [pytest.mark.e2e, pytest.mark.kubectl, pytest.mark.timeout(180), pytest.mark.xdist_group("usual ports of a hub")]

ROOT = Path(__file__).parents[2]
PROGRAMS = {"hub": "hub", "spoke": "spoke", "hubctl": "hubctl", "hollow": "hollow"}
BLOCK = re.compile(r"^```(sh|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVES = re.compile(r"^(hub serve|hollow serve|spoke run)\b")
STAYS = re.compile(rf"{SERVES.pattern}|^hubctl console\b|\s(-w|--watch|--follow)(\s|$)")
LOGIN = ("PATH", "LANG", "LC_ALL", "TMPDIR", "USER", "PYTHONPYCACHEPREFIX")  # variables that every terminal has, beside HOME
MOST = 60.0  # seconds that a command may take
TAKES_EFFECT = 20.0  # seconds in which a command may fail because what was typed before has not taken effect


@dataclass(frozen=True, slots=True)
class Page:
    """What a reader of one document has before he begins, and what his machine spells differently."""

    joined: Sequence[str] = ()  # clusters that are Available
    hub: Sequence[str] | None = ()  # the settings of the hub that is running; None: there is none yet
    before: Sequence[str] = ()  # commands that he typed earlier
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Pieces of the text, and what they stand for here, as the shell has it."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """How commands begin that are not typed here, and why, or the test that does."""


def typed(text: str) -> Iterator[str]:
    """The commands of a document, in order; those that go over several lines as one."""
    for kind, block in BLOCK.findall(text):
        if kind == "sh":
            for line in block.replace("\\\n", " ").splitlines():
                if shlex.split(line, comments=True):
                    yield line.strip()


def files(text: str) -> Iterator[tuple[str, str]]:
    """Its YAML blocks by the names that a reader gives them: `metadata.name`."""
    for kind, block in BLOCK.findall(text):
        if kind == "yaml":
            documents = [each for each in yaml.safe_load_all(block) if isinstance(each, dict)]
            name = (documents[0].get("metadata") or {}).get("name") if documents else None
            if name:
                yield f"{name}.yaml", block


def programs_in(folder: Path) -> Path:
    """A folder in this one with our programs, for the path."""
    programs = folder / "bin"
    programs.mkdir()
    for name, module in PROGRAMS.items():
        file = programs / name
        program = f"PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)}"
        file.write_text(f'#!/bin/sh\n{program} -m {module} "$@"\n')
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return programs


@dataclass
class Reader:
    """Types commands in one terminal, in a folder of its own. Programs that serve get terminals of their own."""

    folder: Path
    login: Mapping[str, str]  # the environment of a new terminal
    environment: Mapping[str, str]  # the environment of the terminal in which commands are typed: `export` changes it
    running: list[asyncio.subprocess.Process] = field(default_factory=list)

    @classmethod
    def at(cls, folder: Path) -> "Reader":
        """In `folder`, with our programs on the path and a home there."""
        programs = programs_in(folder)
        home, here = folder / "home", folder / "here"
        home.mkdir()
        here.mkdir()
        login = {name: os.environ[name] for name in LOGIN if name in os.environ}
        login |= {"HOME": str(home), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        return cls(here, login, login)

    async def types(self, command: str) -> None:
        """Fails when the command still fails after a while, or when one that should stay ends."""
        if STAYS.search(command):
            await self._leaves_running(command)
            return
        if command.startswith("export "):
            _, output = await self._ran(f"{command}; env -0")
            self.environment = dict(each.split("=", 1) for each in output.split("\0") if each)
            return
        deadline = asyncio.get_running_loop().time() + TAKES_EFFECT
        while True:
            ended, output = await self._ran(command)
            if ended == 0:
                return
            if asyncio.get_running_loop().time() > deadline:
                pytest.fail(f"$ {command}\n{output}\nended with {ended}", pytrace=False)
            await asyncio.sleep(0.2)

    async def _ran(self, command: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-o", "pipefail", "-c", command),
            cwd=self.folder,
            env=self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), MOST)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            return None, f"not over after {MOST:g} s"
        return process.returncode, output.decode("utf-8", "replace")

    async def _leaves_running(self, command: str) -> None:
        log = self.folder.parent / f"terminal-{len(self.running)}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *("bash", "-c", f"exec {command}"),
                cwd=self.folder,
                env=self.login if SERVES.search(command) else self.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.running.append(process)
        async with asyncio.timeout(TAKES_EFFECT):
            while not log.read_bytes():
                if process.returncode is not None:
                    break
                await asyncio.sleep(0.05)
        if process.returncode is not None:
            pytest.fail(f"$ {command}\n{log.read_text()}\nended with {process.returncode}", pytrace=False)

    async def leaves(self) -> None:
        """Ctrl-C in every terminal; each must end by that."""
        for process in reversed(self.running):
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
        try:
            async with asyncio.timeout(TAKES_EFFECT):
                await asyncio.gather(*(process.wait() for process in self.running))
        finally:
            for process in self.running:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)


ENGINE = "needs a container engine; tests/e2e/test_composed.py starts the same as plain processes"
CLUSTER = "needs a Kubernetes cluster; tests/integration/charts/test_charts.py renders these with their values"
INSTALLS = "installs this very project; every fresh clone does it before this test"
ISSUER = "needs an issuer of tokens; tests/e2e/test_login.py has one and types the same"
WITH_CLUSTER = "needs a cluster; tests/e2e/test_kube_cert.py has one"
COLLECTOR = "needs a collector; tests/e2e/test_telemetry.py has one"
NO_PODS = "hollow clusters run no pod; tests/e2e/test_spoke.py starts the agent with what was applied"
ARGO_CD = "kubectl --kubeconfig argocd.kubeconfig"
NO_ARGO_CD = "needs Argo CD or the principal of its agent; hollow clusters store its Secrets"
ADMIN = "kubectl --kubeconfig ~/.local/share/muster/admin.kubeconfig"
CREDENTIAL = "$(hubctl get bootstrap-credentials -o name | tail -1 | cut -d/ -f2)"
AGENT = "$(hubctl describe cluster edge1 | grep -om1 'management:edge1:[a-z0-9]*' | cut -d: -f3)"
ISSUED = f"{ADMIN} get csr -o jsonpath='{{.items[0].status.certificate}}' | base64 -d"
SERIAL = f"$({ISSUED} | openssl x509 -noout -serial | cut -d= -f2)"
REPLICA = "$(hubctl get replicas -o name | cut -d/ -f2)"
AUTHORITY = "$(hubctl ca status | awk '$2 == \"Retiring\" {print $1}')"
EDGE = "{apiVersion: cluster.open-cluster-management.io/v1, kind: ManagedCluster, metadata: {name: edge1}}"
WAITING = "until [ $(hubctl get csr -o name | wc -l) = {} ]; do sleep 0.1; done; "
"""A reader sees in the list that the requests are there."""
ON_THIS_MACHINE = {"create bootstrap-kubeconfig ": "create bootstrap-kubeconfig --allow-loopback "}
"""What the documents write for hubs that others reach."""

PAGES: Mapping[str, Page] = {
    "README.md": Page(hub=None, elsewhere={"make ": "is what CI does"}),
    "docs/how-to/run-by-hand.md": Page(
        hub=None,
        spelled={"hubctl accept": f"{WAITING.format(1)}hubctl accept"},
        elsewhere={
            **dict.fromkeys(("python3 -m venv", ".venv/bin/pip", "export PATH"), INSTALLS),
            "docker ": ENGINE,
        },
    ),
    "docs/how-to/approval-rules.md": Page(),
    "docs/how-to/ask-the-inventory.md": Page(joined=("edge1",)),
    "docs/how-to/back-up-and-restore.md": Page(),
    "docs/how-to/upgrade.md": Page(),
    "docs/how-to/bootstrap-credentials.md": Page(joined=("edge9",), spelled={"0123456789abcdef": CREDENTIAL}),
    "docs/how-to/argo-cd.md": Page(
        joined=("edge1",),
        before=(
            "hollow serve --name argocd --kubeconfig-out argocd.kubeconfig",
            "until kubectl --kubeconfig argocd.kubeconfig create namespace argocd; do sleep 0.1; done",
        ),
        spelled={"edge1.kubeconfig": "../edge1.kubeconfig"},
        elsewhere={
            **dict.fromkeys((f"{ARGO_CD} apply -f guestbook", f"{ARGO_CD} -n argocd get app", "argocd-agentctl "), NO_ARGO_CD),
        },
    ),
    "docs/how-to/attestation.md": Page(
        hub=("--attestation-allowed-issuers=https://oidc.example.com/edge1",),
        joined=("edge9",),
        elsewhere={"hub serve --attestation-allowed-issuers": "a hub is there already, with this setting"},
        spelled={
            "edge1-cluster.kubeconfig": "../edge9.kubeconfig",
            "oidc.example.com/edge1 -o edge1.bootstrap": "oidc.example.com/edge1 -o first.bootstrap",
            "| jq -r .issuer": "| grep issuer",
            "| jq ": "| cat #",
        },
    ),
    "docs/how-to/aggregation.md": Page(elsewhere={"helm ": CLUSTER, "kubectl get apiservices": CLUSTER}),
    "docs/how-to/console.md": Page(hub=("--console=on",)),
    "docs/how-to/diagnose-a-cluster.md": Page(joined=("edge1",)),
    "docs/how-to/look-at-a-hub.md": Page(spelled={"hub doctor": "hub doctor {listen}"}),
    "docs/how-to/work-with-hubctl.md": Page(
        joined=("edge1",),
        elsewhere={"kubectl hub": "needs its program on the PATH; tests/integration/https_door/test_hubctl_kinds.py types it"},
    ),
    # by force, because no other replica is there
    "docs/how-to/drain-a-replica.md": Page(spelled={"hub-0": REPLICA, "--timeout": "--force --timeout"}),
    "docs/how-to/join-a-cluster.md": Page(
        before=(
            "hollow serve --name edge1 --kubeconfig-out edge1.kubeconfig",
            "hollow serve --name edge2 --kubeconfig-out edge2.kubeconfig",
            "until [ -f edge1.kubeconfig ] && [ -f edge2.kubeconfig ]; do sleep 0.1; done",
        ),
        spelled={"hubctl join ": "hubctl join --allow-loopback "},
        elsewhere={"helm ": CLUSTER, **dict.fromkeys(("hubctl get clusters -w", "hubctl accept"), NO_PODS)},
    ),
    "docs/how-to/on-kind.md": Page(elsewhere=dict.fromkeys(("kind ", "make ", "helm ", "kubectl ", "docker "), CLUSTER)),
    "docs/how-to/on-kubernetes.md": Page(elsewhere={"helm ": CLUSTER, "kubectl ": CLUSTER}),
    "docs/how-to/from-ocm.md": Page(
        before=(
            "hub serve --data-dir ocm --grpc-listen 127.0.0.1:{port} --https-listen 127.0.0.1:{port}",
            "hollow serve --name edge1 --kubeconfig-out edge1.kubeconfig",
            "until [ -f ocm/admin.kubeconfig ] && [ -f edge1.kubeconfig ]; do sleep 0.1; done",
            "cp ocm/admin.kubeconfig ocm.kubeconfig",
            f"echo '{EDGE}' | hubctl --kubeconfig ocm.kubeconfig apply -f -",
        ),
        spelled={"hubctl join ": "hubctl join --allow-loopback ", "3m": "1s"},
        elsewhere=dict.fromkeys(("hubctl accept", "hubctl wait", "kubectl --kubeconfig edge1.kubeconfig"), NO_PODS),
    ),
    "docs/how-to/kubernetes-ca.md": Page(elsewhere={"helm ": CLUSTER, "kubectl --kubeconfig admin.kubeconfig": WITH_CLUSTER}),
    "docs/how-to/logging-in.md": Page(
        before=(f"{ADMIN} apply -f corp.yaml -f iam.yaml",),
        spelled={"LS0t...": ""},
        elsewhere=dict.fromkeys(("hubctl login", "hubctl logout"), ISSUER),
    ),
    "docs/how-to/revocation.md": Page(
        joined=("edge1",),
        spelled={
            "revoke agent edge1 bcdfg": f"revoke agent edge1 {AGENT}",
            "5f3a09": SERIAL,
            "0123456789abcdef": CREDENTIAL,
            "ca.crt https://localhost:6443": "~/.local/share/muster/ca.crt https://{https}",
        },
    ),
    "docs/how-to/rotating-the-ca.md": Page(
        hub=("--ca-rotation-patience=2s",),  # what people have holds a step up for a day
        joined=("edge1",),
        spelled={"proceed ID": f"proceed {AUTHORITY}", "--compromised": "--compromised --yes --within 5s", "FOLDER": "keys"},
    ),
    "docs/how-to/size-a-hub.md": Page(
        spelled={
            "--agents 1000": "--agents 10",
            "--ramp 2m": "--ramp 1s",
            "--duration 5m": "--duration 2s",
            "--duration 2m": "--duration 2s",
        },
    ),
    "docs/how-to/the-past.md": Page(joined=("edge1",)),
    "docs/how-to/traces-and-logs.md": Page(
        elsewhere={
            "kubectl --kubeconfig edge1.kubeconfig": CLUSTER,
            "pip install ": INSTALLS,
            **dict.fromkeys(("hub serve --trace-endpoint", "spoke run --trace-endpoint"), COLLECTOR),
        }
    ),
    "docs/tutorial/first-fleet.md": Page(hub=None, spelled={"hubctl accept": f"{WAITING.format(2)}hubctl accept"}),
    "docs/how-to/watching-a-hub.md": Page(
        elsewhere={"hub serve ": "a hub is there already; tests/e2e/test_telemetry.py runs it"}
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
IN_EVERY_RUN = ("docs/how-to/run-by-hand.md", "docs/tutorial/first-fleet.md", "docs/how-to/join-a-cluster.md")


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def spelled(command: str, page: Page, bench: Bench) -> str:
    """The command with the values of this machine; a hub gets free ports by its flags."""
    https = f"127.0.0.1:{bench.https_port}"
    listen = f"--grpc-listen 127.0.0.1:{bench.grpc_port} --https-listen {https}"
    for written, meant in {**ON_THIS_MACHINE, **page.spelled}.items():
        command = command.replace(written, meant.replace("{https}", https).replace("{listen}", listen))
    return f"{command} {listen}" if command.startswith("hub serve") else command


@soaked(1)
@pytest.mark.parametrize("name", sorted(PAGES) if SOAKING else IN_EVERY_RUN)
async def test_commands_of_a_document_work_as_typed(name: str, tmp_path: Path) -> None:
    page, text = PAGES[name], text_of(name)
    bench = Bench(tmp_path, data_name="home/.local/share/muster")
    reader = Reader.at(tmp_path)
    for file, content in files(text):
        (reader.folder / file).write_text(spelled(content, page, bench))
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
                await reader.types(spelled(command, page, bench))
    finally:
        try:
            await reader.leaves()
        finally:
            await bench.close()


def test_each_page_with_commands_is_typed_and_its_exceptions_exist() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    flaws = [str(path) for path in documents if any(typed(path.read_text())) and str(path.relative_to(ROOT)) not in PAGES]
    for name, page in PAGES.items():
        commands = list(typed(text_of(name)))
        for beginning, reason in page.elsewhere.items():
            if not any(command.startswith(beginning) for command in commands):
                flaws.append(f"{name} has no command that begins {beginning}")
            flaws += [f"{name}: {file}" for file in re.findall(r"tests/[\w/]+\.py", reason) if not (ROOT / file).exists()]
    assert not flaws, "\n".join(flaws)
