"""Secrets that are known to a test, and looked for wherever they must not be: as they are, in base64, in hex, in parts."""

import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

SHORTEST = 16
"""Bytes; what is shorter would be found by chance."""


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


def of_processes(pids: Iterable[int]) -> dict[str, bytes]:
    """What anybody on the machine sees of processes of ours, and their descendants: the arguments; and their environment."""
    places: dict[str, bytes] = {}
    for pid in _with_children(set(pids)):
        for file in ("cmdline", "environ"):
            try:
                places[f"{file} of {pid}"] = Path(f"/proc/{pid}/{file}").read_bytes()
            except OSError:
                continue
    return places


def _with_children(pids: set[int]) -> set[int]:
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names, not files
        if entry.isdigit():
            try:
                status = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parents[int(entry)] = int(status.rpartition(")")[2].split()[1])
    found = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found
