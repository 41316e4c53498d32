"""The files of the demo, and the commands that it runs and suggests."""

import contextlib
import fcntl
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CLUSTERS = ("cluster-0", "cluster-1", "cluster-2")
LEASE = "2s"
USUAL_PORTS = (8443, 6443)
FREE = 0


class OccupiedError(Exception):
    """Another demo is running in the directory `DemoFolder.root`."""


@dataclass(frozen=True, slots=True)
class DemoHub:
    name: str
    folder: Path
    grpc: int
    https: int

    @property
    def admin(self) -> Path:
        return self.folder / "admin.kubeconfig"


@dataclass(frozen=True, slots=True)
class DemoFolder:
    root: Path

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def hubs(self, count: int) -> tuple[DemoHub, ...]:
        """Return the hubs in the agents' order of preference: `hub`, or `hub-0`, `hub-1` ... if there are several."""
        names = ["hub"] if count == 1 else [f"hub-{number}" for number in range(count)]
        ports = iter(choose_ports(*USUAL_PORTS, *[FREE] * (2 * (count - 1))))
        return tuple(DemoHub(name, self.root / name, next(ports), next(ports)) for name in names)

    def cluster(self, name: str) -> Path:
        return self.root / "clusters" / f"{name}.kubeconfig"

    def bootstrap(self, name: str, hub: DemoHub) -> Path:
        """Return the path of a cluster's bootstrap kubeconfig for a hub.

        If there are several hubs, the file has the name of the hub. Agents show this name.
        """
        file = f"{name}.kubeconfig" if hub.name == "hub" else f"{name}/{hub.name}.kubeconfig"
        return self.root / "bootstrap" / file

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Lock the directory `root` during the block, and delete an earlier demo's files. Raises OccupiedError if locked."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.root / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OccupiedError(f"another demo is running in {self.root}; end it, or set --directory") from error
            for hub in self.root.glob("hub*"):
                shutil.rmtree(hub, ignore_errors=True)
            for directory in (self.logs, self.root / "clusters", self.root / "bootstrap", self.root / "spokes"):
                shutil.rmtree(directory, ignore_errors=True)
                directory.mkdir(mode=0o700)
            yield
        finally:
            os.close(lock)


def choose_ports(*wanted: int) -> list[int]:
    """Return distinct free ports: each wanted port if it is free, otherwise another one. FREE means any port."""
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


def hub_command(hub: DemoHub) -> list[str]:
    """Return the command of a hub that approves all clusters and has short leases."""
    return program(
        "hub",
        "serve",
        f"--data-dir={hub.folder}",
        f"--grpc-listen=127.0.0.1:{hub.grpc}",
        f"--https-listen=127.0.0.1:{hub.https}",
        "--auto-approve=*",
        "--console=on",
        f"--default-lease-duration={LEASE}",
        "--beat-interval=500ms",
        "--flush-window=200ms",
    )


def hollow_command(place: DemoFolder) -> list[str]:
    return program(
        "hollow",
        "serve",
        f"--count={len(CLUSTERS)}",
        f"--name={CLUSTERS[0].rpartition('-')[0]}",
        f"--kubeconfig-out={place.cluster('{name}')}",
    )


def spoke_command(place: DemoFolder, name: str, hubs: Sequence[DemoHub]) -> list[str]:
    return program(
        "spoke",
        "run",
        *(f"--bootstrap-kubeconfig={place.bootstrap(name, hub)}" for hub in hubs),
        f"--kubeconfig={place.cluster(name)}",
        f"--hub-kubeconfig-dir={place.root / 'spokes' / name}",
    )


def next_commands(place: DemoFolder, hubs: Sequence[DemoHub], pids: Mapping[str, int]) -> str:
    """Return suggested commands that the user can paste into another terminal.

    `pids`: process ids by the name of a hub, or of an agent's cluster.
    """
    owner, cluster = hubs[0], CLUSTERS[0]
    hubctl = _hubctl(owner)
    kubectl = f"kubectl --kubeconfig={relative(owner.admin)}"
    further = ""
    if len(hubs) > 1:
        further = f"""
The agents have their sessions with {owner.name}, and standby registrations at the other hub. Kill the owner, and watch here how
every cluster arrives on {hubs[1].name} without another approval:

  kill -9 {pids[owner.name]}

Start it again: every cluster then has a standby registration there. Or show the inventory of the other hub:

  {_typed(hub_command(owner), owner.folder)}
  {_hubctl(hubs[1])} get clusters -w
"""
    return f"""All clusters are Available. In another terminal, try:

  {hubctl} console
  {hubctl} get clusters -w
  {hubctl} describe cluster {cluster}
  {hubctl} get csr
  {kubectl} get managedclusters
  {kubectl} get managedcluster {cluster} -o yaml
  kubectl --kubeconfig={relative(place.cluster(cluster))} get nodes
{further}
Kill an agent, and watch: its session ends within a second, its cluster becomes Unknown within 12 s (five leases of {LEASE}):

  kill -9 {pids[cluster]}

Start it again: it reconnects with its certificate, without another approval:

  {_typed(spoke_command(place, cluster, hubs), place.root)}

Logs: {relative(place.logs)}    Everything ends with Ctrl-C."""


def _hubctl(hub: DemoHub) -> str:
    return _typed([*program("hubctl"), f"--kubeconfig={hub.admin}"], hub.folder)


def _typed(command: Sequence[str], root: Path) -> str:
    """Return a command as a user types it: the script next to the interpreter, and relative paths below `root`."""
    python, _, module, *arguments = command
    script = Path(python).with_name(module)
    started = [relative(script)] if script.exists() else [relative(Path(python)), "-m", module]
    return shlex.join([*started, *(argument.replace(str(root), relative(root)) for argument in arguments)])


def relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
