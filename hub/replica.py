"""Which replica of the hub this process is: its name, by which the audit's chain, sessions and leadership know it."""

import os
import re
import socket
from collections.abc import Mapping
from uuid import uuid4

from hub.settings import Settings
from machinery.directory import DataDirectory
from machinery.errors import InvalidError

FILE = "replica"
POD_NAME = "POD_NAME"
"""The downward API's, as the charts set it."""
LONGEST = 200
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def is_alone(settings: Settings) -> bool:
    """Whether no other replica can be: the embedded database serves one hub."""
    url = settings.database_url
    return url is None or url.get_secret_value().startswith("sqlite")


def replica_name(settings: Settings, directory: DataDirectory, environment: Mapping[str, str] | None = None) -> str:
    """The same after every restart. Raises InvalidError for what names no replica, UnavailableError.

    On the embedded database it is one that the data directory keeps, because that may move to another machine.
    """
    given = settings.replica_name or (os.environ if environment is None else environment).get(POD_NAME)
    if given:
        return _checked(given, "--replica-name" if settings.replica_name else POD_NAME)
    if is_alone(settings):
        return _kept(directory)
    return _checked(re.sub(r"[^a-z0-9.-]", "-", socket.gethostname().lower()).strip("-."), "the host's name")


def _checked(name: str, origin: str) -> str:
    if len(name) > LONGEST or not _NAME.fullmatch(name):
        raise InvalidError(
            f'{origin}: "{name}" can name no replica: use lower-case letters, digits, "-" and ".", as in --replica-name hub-0'
        )
    return name


def _kept(directory: DataDirectory) -> str:
    known = directory.read(FILE)
    if known is not None and known.strip():
        return known.decode("ascii", "replace").strip()
    name = str(uuid4())
    directory.write(FILE, f"{name}\n".encode())
    return name
