"""Where everything of the demo lies, and the commands that it starts and suggests: what a person would type."""

import contextlib
import fcntl
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CLUSTERS = ("cluster-0", "cluster-1", "cluster-2")
LEASE = "2s"
USUAL_PORTS = (8443, 6443)
FREE = 0


class OccupiedError(Exception):
    """Another demo is running in that directory."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where everything of the demo lies."""

    root: Path

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def hub(self) -> Path:
        return self.root / "hub"

    @property
    def admin(self) -> Path:
        return self.hub / "admin.kubeconfig"

    def cluster(self, name: str) -> Path:
        return self.root / "clusters" / f"{name}.kubeconfig"

    def bootstrap(self, name: str) -> Path:
        return self.root / "bootstrap" / f"{name}.kubeconfig"

    def hub_kubeconfig(self, name: str) -> Path:
        return self.root / "spokes" / name

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Empties the place and keeps other demos out of it. Raises OccupiedError when one is running there."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.root / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OccupiedError(f"another demo is running in {self.root}; end it, or say --directory") from error
            shutil.rmtree(self.hub, ignore_errors=True)
            for directory in (self.logs, self.root / "clusters", self.root / "bootstrap", self.root / "spokes"):
                shutil.rmtree(directory, ignore_errors=True)
                directory.mkdir(mode=0o700)
            yield
        finally:
            os.close(lock)


def choose_ports(*wanted: int) -> list[int]:
    """Each wanted port where it is free, another one where it is taken or FREE is wanted; all are different."""
    with contextlib.ExitStack() as held:
        chosen = []
        for port in wanted:
            listener = held.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                listener.bind(("127.0.0.1", FREE))
            chosen.append(listener.getsockname()[1])
        return chosen


def program(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def hub_command(place: Place, grpc: int, https: int) -> list[str]:
    """A hub that approves everybody, and whose leases are short enough to watch one end."""
    return program(
        "hub",
        "serve",
        f"--data-dir={place.hub}",
        f"--grpc-listen=127.0.0.1:{grpc}",
        f"--https-listen=127.0.0.1:{https}",
        "--auto-approve=*",
        f"--default-lease-duration={LEASE}",
        "--beat-interval=500ms",
        "--flush-window=200ms",
    )


def hollow_command(place: Place) -> list[str]:
    return program(
        "hollow",
        "serve",
        f"--count={len(CLUSTERS)}",
        f"--name={CLUSTERS[0].rpartition('-')[0]}",
        f"--kubeconfig-out={place.cluster('{name}')}",
    )


def spoke_command(place: Place, name: str) -> list[str]:
    return program(
        "spoke",
        "run",
        f"--bootstrap-kubeconfig={place.bootstrap(name)}",
        f"--kubeconfig={place.cluster(name)}",
        f"--hub-kubeconfig-dir={place.hub_kubeconfig(name)}",
    )


def next_commands(place: Place, spokes: Sequence[tuple[str, int]]) -> str:
    """What to try now, given the clusters and the process ids of their agents.

    Every line can be pasted into another terminal.
    """
    hubctl = shlex.join([*_shortest("hubctl", "hub.cli"), f"--kubeconfig={relative(place.admin)}"])
    kubectl = f"kubectl --kubeconfig={relative(place.admin)}"
    cluster, victim = spokes[0]
    return f"""All clusters are Available. In another terminal, try:

  {hubctl} get clusters -w
  {hubctl} describe cluster {cluster}
  {hubctl} get csr
  {kubectl} get managedclusters
  {kubectl} get managedcluster {cluster} -o yaml
  kubectl --kubeconfig={relative(place.cluster(cluster))} get nodes

Kill an agent and watch: within a second its session is gone, within 12 s (five leases of {LEASE}) it reads Unknown:

  kill -9 {victim}

Start it again, and it is back with the certificate it has, without being approved anew:

  {shlex.join(spoke_again(place, cluster))}

Logs: {relative(place.logs)}    Everything ends with Ctrl-C."""


def spoke_again(place: Place, name: str) -> list[str]:
    return [
        *_shortest("spoke", "spoke"),
        "run",
        f"--bootstrap-kubeconfig={relative(place.bootstrap(name))}",
        f"--kubeconfig={relative(place.cluster(name))}",
        f"--hub-kubeconfig-dir={relative(place.hub_kubeconfig(name))}",
    ]


def _shortest(script: str, module: str) -> list[str]:
    """How to start a program from here: by its script beside the interpreter, else as a module."""
    beside = Path(sys.executable).with_name(script)
    return [relative(beside)] if beside.exists() else [relative(Path(sys.executable)), "-m", module]


def relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
