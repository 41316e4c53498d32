"""The program of the cert agent's pod: `python -m hub.extensions.kube_cert_agent sleep|print`.

`sleep` keeps the pod Running. `print` writes the certificate and key named by CERT_PATH and KEY_PATH as one JSON object
`{"tls.crt": <base64>, "tls.key": <base64>}`, which the hub reads through the exec channel. Errors go to standard error, with
exit code 1. Two of these processes share 32 MiB, so the program imports only the standard library.
"""

import base64
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

CERT_PATH, KEY_PATH = "CERT_PATH", "KEY_PATH"
CERTIFICATE, KEY = "tls.crt", "tls.key"
USAGE = "kube-cert-agent: expected one word, sleep or print"


def main(
    words: Sequence[str], environment: Mapping[str, str], write: Callable[[str], object], rest: Callable[[], object]
) -> str:
    """Run the command in `words`. `rest` waits for a signal. Return the error message, without file content; "" on success."""
    if list(words) == ["sleep"]:
        rest()
        return ""
    if list(words) != ["print"]:
        return USAGE
    try:
        encoded = {name: _read(environment, variable) for name, variable in ((CERTIFICATE, CERT_PATH), (KEY, KEY_PATH))}
    except OSError as error:
        return f"kube-cert-agent: {error.filename} cannot be read: {error.strerror}"
    try:
        write(json.dumps(encoded) + "\n")
    except OSError as error:
        return f"kube-cert-agent: cannot write: {error.strerror}"
    return ""


def _read(environment: Mapping[str, str], variable: str) -> str:
    return base64.b64encode(Path(environment.get(variable, "")).read_bytes()).decode("ascii")


def _rest() -> None:
    """Wait for SIGTERM or SIGINT, which the first process of a container does not get by default."""
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    sys.exit(main(sys.argv[1:], os.environ, _write, _rest) or None)
