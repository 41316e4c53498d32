"""Opens PostgreSQL sessions that limit how long the hub waits, and how long other replicas wait for the hub's locks.

The server ends a session that takes too long, that holds locks while its hub is suspended, or whose hub has ended. TCP
keepalives detect a lost server. If a connected server does not answer (a hung disk, a stopped process), the hub gives it up
after `SessionLimits.patience`. Otherwise the hub would wait forever, although another server has taken over.
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
"""Source file in which PostgreSQL raises the warning about a wait for a standby."""
SCHEMES = ("postgresql://", "postgres://", "postgresql+psycopg://")


class BoundConnection(psycopg.Connection[Any]):
    """Connection that closes when the server does not answer, and that notes commits which the standby has not confirmed."""

    patience: float | None = None
    unconfirmed = False
    """Whether a commit succeeded without confirmation by the synchronous standby; see `noticed`."""

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        try:
            return super().wait(gen, interval, self.patience if timeout is None else timeout)
        except psycopg.errors._WaitTimeout as error:  # noqa: SLF001 - the driver has no public error for it
            self.pgconn.finish()
            raise psycopg.OperationalError("the server does not answer") from error

    def noticed(self, notice: Diagnostic) -> None:
        """Detect a commit whose wait for the synchronous standby was cancelled: it succeeds, with a warning.

        The message is localized and the SQLSTATE is that of any warning, so the source file identifies it.
        """
        is_warning = notice.severity_nonlocalized == "WARNING"
        self.unconfirmed = self.unconfirmed or (is_warning and (notice.source_file or "").endswith(WAITS_FOR_STANDBY))


def postgres_engine(url: URL, isolation: Any, limits: SessionLimits, *, connections: int, patient: bool = False) -> Engine:
    """Create an engine. `patient`: no time-out for answers, for migrations."""
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
    """Return the driver's arguments for a connection outside the pool."""
    dialect: Any = PGDialect_psycopg
    _, given = dialect().create_connect_args(url)
    return _arguments(given, limits)


def _arguments(given: Mapping[str, Any], limits: SessionLimits) -> dict[str, Any]:
    """Return the URL's arguments, restricted to a primary.

    A standby is behind, so the hub does not read from it either. An address may temporarily lead to a standby. A session that
    begins on this server would stay there. A primary that is read-only by configuration is accepted for reads.
    """
    options = f"{given.get('options', '')} {limits.options()} -c timezone=UTC".strip()
    return {"target_session_attrs": "primary", **given, **limits.arguments(), "options": options}


def make_postgres_url(text: str) -> URL:
    """Parse a URL, also with several servers: `postgresql://USER@HOST1,HOST2:5433/NAME`. Raises ArgumentError."""
    scheme = next((scheme for scheme in SCHEMES if text.startswith(scheme)), None)
    if scheme is not None:
        place, slash, rest = text.removeprefix(scheme).partition("/")
        user, at, hosts = place.rpartition("@")
        if "," in hosts:
            names, ports = zip(*(_split(host) for host in hosts.split(",")), strict=True)
            if not all(port.isdigit() for port in ports):
                raise ArgumentError("a port is not a number")
            rest, mark, query = rest.partition("?")
            several = f"host={quote(','.join(names), safe=',')}&port={','.join(ports)}"
            text = f"postgresql://{user}{at}/{rest}?{several}{'&' if mark else ''}{query}"
        elif scheme == "postgres://":
            text = f"postgresql://{user}{at}{hosts}{slash}{rest}"
    return make_url(text).set(drivername="postgresql+psycopg")


def _split(place: str) -> tuple[str, str]:
    """Host and port of one server; IPv6 addresses are in brackets."""
    name, colon, port = place.rpartition(":")
    if not colon or port.endswith("]"):
        name, port = place, ""
    return name.strip("[]"), port or "5432"
