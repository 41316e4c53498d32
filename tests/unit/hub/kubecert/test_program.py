"""The cert agent's program: `sleep` and `print`, and what it says when it cannot."""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hub.kubecert.__main__ import main


class Paper:
    """Takes what is written; `failure` instead."""

    def __init__(self, failure: OSError | None = None) -> None:
        self.text = ""
        self.rested = 0
        self._failure = failure

    def write(self, text: str) -> None:
        if self._failure is not None:
            raise self._failure
        self.text += text

    def rest(self) -> None:
        self.rested += 1


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "ca.crt").write_bytes(b"the certificate")
    (tmp_path / "ca.key").write_bytes(b"the key")
    return {"CERT_PATH": str(tmp_path / "ca.crt"), "KEY_PATH": str(tmp_path / "ca.key")}


@pytest.mark.parametrize("words", [[], ["dance"], ["print", "more"]], ids=["no argument", "bad subcommand", "too many"])
def test_anything_but_one_of_its_two_words_is_refused(words: list[str], environment: dict[str, str]) -> None:
    paper = Paper()
    assert "expected one word, sleep or print" in main(words, environment, paper.write, paper.rest)
    assert (paper.text, paper.rested) == ("", 0)


def test_sleep_rests_and_reads_nothing() -> None:
    paper = Paper()
    assert main(["sleep"], {}, paper.write, paper.rest) == ""
    assert (paper.text, paper.rested) == ("", 1)


@pytest.mark.parametrize("missing", ["CERT_PATH", "KEY_PATH"])
def test_a_file_that_is_missing_is_named_and_nothing_is_printed(missing: str, environment: dict[str, str]) -> None:
    paper = Paper()
    path = Path(environment[missing])
    path.unlink()
    assert (
        main(["print"], environment, paper.write, paper.rest)
        == f"kube-cert-agent: {path} cannot be read: No such file or directory"
    )
    assert paper.text == ""


def test_output_that_cannot_be_written_is_said(environment: dict[str, str]) -> None:
    paper = Paper(OSError(28, "No space left on device"))
    assert main(["print"], environment, paper.write, paper.rest) == "kube-cert-agent: cannot write: No space left on device"


def test_print_writes_both_as_one_json_object(environment: dict[str, str]) -> None:
    paper = Paper()
    assert main(["print"], environment, paper.write, paper.rest) == ""
    assert {name: base64.b64decode(text) for name, text in json.loads(paper.text).items()} == {
        "tls.crt": b"the certificate",
        "tls.key": b"the key",
    }


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "hub.kubecert", *words]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, timeout=20, check=False)


def test_the_program_itself_prints_and_fails_with_a_code(environment: dict[str, str]) -> None:
    done = run("print", **environment)
    assert (done.returncode, set(json.loads(done.stdout)), done.stderr) == (0, {"tls.crt", "tls.key"}, b"")
    failed = run("dance")
    assert (failed.returncode, failed.stdout, b"sleep or print" in failed.stderr) == (1, b"", True)


@contextmanager
def held_back(number: signal.Signals) -> Iterator[None]:
    """What is started in the block gets this signal when it asks for it, however early it is sent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_the_program_itself_sleeps_until_it_is_told_to_stop_and_is_small() -> None:
    code = "import sys, runpy\nsys.argv = ['agent', 'dance']\ntry:\n runpy.run_module('hub.kubecert', run_name='__main__')\n"
    code += "except SystemExit:\n print(*sorted(each for each in sys.modules if each.partition('.')[0] in OURS))"
    ours = "OURS = {'hub', 'machinery', 'kubernetes', 'aiohttp', 'structlog', 'cryptography', 'pydantic'}\n"
    loaded = subprocess.run([sys.executable, "-c", ours + code], capture_output=True, timeout=20, check=True)
    assert set(loaded.stdout.decode().split()) <= {"hub", "hub.kubecert"}, "nothing that 32 MiB would not hold twice"
    with held_back(signal.SIGTERM):
        sleeping = subprocess.Popen([sys.executable, "-m", "hub.kubecert", "sleep"])
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            sleeping.wait(0.5)
        sleeping.send_signal(signal.SIGTERM)
        assert sleeping.wait(20) == 0
    finally:
        sleeping.kill()
