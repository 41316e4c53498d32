"""Real processes on free ports in a folder of their own; what they logged is shown when a test fails."""

import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url, text

from tests.e2e.processes import Bench, Program

TAIL = 60
REPORT = pytest.StashKey[pytest.TestReport]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if report.when == "call":
        item.stash[REPORT] = report
    return report


@pytest.fixture(scope="session")
def postgres_server_url() -> Iterator[str]:
    from tests.fakes.postgres import postgres_server  # noqa: PLC0415 - only where the package is installed

    with postgres_server() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server_url: str) -> Iterator[str]:
    """A database that nobody has used, on the session's server; it is dropped, whoever is still connected."""
    server = make_url(postgres_server_url)
    name = f"hub_{uuid4().hex[:12]}"
    engine = create_engine(server.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield server.set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


def told_when_failed(request: pytest.FixtureRequest, programs: Iterable[Program]) -> None:
    """What these programs logged last is shown when the test has failed."""
    report = request.node.stash.get(REPORT, None)
    if report is not None and report.failed:
        for program in programs:
            tail = "\n".join(program.output.splitlines()[-TAIL:])
            sys.stderr.write(f"\n----- log of {program.name} -----\n{tail}\n")


@pytest.fixture
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    try:
        yield bench
    finally:
        await bench.close()
        told_when_failed(request, bench.programs)
    assert "PRIVATE KEY" not in bench.logs, "a private key is in a log"
