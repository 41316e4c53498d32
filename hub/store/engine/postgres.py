"""Sessions on PostgreSQL: none lets others wait, or waits itself, for longer than it was told.

The server ends what takes too long, holds a lock while its hub stands still, or belongs to a hub that is gone; TCP finds out
that a server is gone; and a server that is there and does not answer (its disk hangs, it was stopped) is left after the time
in which it would have had to give up by itself. Without the last a hub would wait for a frozen server for ever, although
another one has long taken its place.
"""

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import Diagnostic
from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import ArgumentError

from hub.store.engine.timeouts import SessionLimits

RV = TypeVar("RV")

WAITS_FOR_STANDBY = "syncrep.c"
"""PostgreSQL's source of that wait."""
SCHEMES = ("postgresql://", "postgres://", "postgresql+psycopg://")


class BoundConnection(psycopg.Connection[Any]):
    """A connection that is given up when its server does not answer, and that knows when a commit is doubtful."""

    patience: float | None = None
    doubted = False
    """A commit was called done that the synchronous standby has not confirmed: see `noticed`."""

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        try:
            return super().wait(gen, interval, self.patience if timeout is None else timeout)
        except psycopg.errors._WaitTimeout as error:  # noqa: SLF001 - the driver's only word for it
            self.pgconn.finish()
            raise psycopg.OperationalError("the server does not answer") from error

    def noticed(self, notice: Diagnostic) -> None:
        """A commit whose wait for the synchronous standby somebody ended succeeds, with a warning.

        The server warns of other things, too, at a commit as well. Its words are in its own language and this one's code is
        that of any warning; the place in its source is what tells it apart.
        """
        is_warning = notice.severity_nonlocalized == "WARNING"
        self.doubted = self.doubted or (is_warning and (notice.source_file or "").endswith(WAITS_FOR_STANDBY))


def postgres_engine(url: URL, isolation: Any, limits: SessionLimits, *, connections: int, patient: bool = False) -> Engine:
    """`patient`: for migrations, whose statements take as long as they take."""
    engine = create_engine(
        url,
        isolation_level=isolation,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=limits.held.total_seconds(),
        pool_pre_ping=True,
    )

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, args: list[Any], given: dict[str, Any]) -> BoundConnection:
        connection = BoundConnection.connect(*args, **_arguments(given, limits))
        connection.add_notice_handler(connection.noticed)
        connection.patience = None if patient else limits.patience
        return connection

    return engine


def connection_arguments(url: URL, limits: SessionLimits) -> Mapping[str, Any]:
    """What the driver needs for a connection of its own."""
    dialect: Any = PGDialect_psycopg
    _, given = dialect().create_connect_args(url)
    return _arguments(given, limits)


def _arguments(given: Mapping[str, Any], limits: SessionLimits) -> dict[str, Any]:
    """What the URL says, and what it must not.

    A standby is nobody's server, for reading neither: it is behind. Behind one address, too, there may be one for a while, and
    whoever was let in would stay. A primary that takes no writes by its configuration is good for reading.
    """
    options = f"{given.get('options', '')} {limits.options()} -c timezone=UTC".strip()
    return {"target_session_attrs": "primary", **given, **limits.arguments(), "options": options}


def make_postgres_url(text: str) -> URL:
    """A URL, also in the form of PostgreSQL's own tools, with several servers: `postgresql://USER@HOST1,HOST2:5433/NAME`.

    Raises ArgumentError.
    """
    scheme = next((scheme for scheme in SCHEMES if text.startswith(scheme)), None)
    if scheme is not None:
        place, slash, rest = text.removeprefix(scheme).partition("/")
        user, at, hosts = place.rpartition("@")
        if "," in hosts:
            names, ports = zip(*(_split(host) for host in hosts.split(",")), strict=True)
            if not all(port.isdigit() for port in ports):
                raise ArgumentError("a port is no number")
            rest, mark, query = rest.partition("?")
            several = f"host={quote(','.join(names), safe=',')}&port={','.join(ports)}"
            text = f"postgresql://{user}{at}/{rest}?{several}{'&' if mark else ''}{query}"
        elif scheme == "postgres://":
            text = f"postgresql://{user}{at}{hosts}{slash}{rest}"
    return make_url(text).set(drivername="postgresql+psycopg")


def _split(place: str) -> tuple[str, str]:
    """Name and port of one server; IPv6 addresses stand in brackets."""
    name, colon, port = place.rpartition(":")
    if not colon or port.endswith("]"):
        name, port = place, ""
    return name.strip("[]"), port or "5432"
