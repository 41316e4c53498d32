"""Parses the output of the cert agent's `print`: certificate and key. Its errors contain no part of it."""

import base64
import binascii
import json
from dataclasses import dataclass, field

from hub.kubecert.__main__ import CERTIFICATE, KEY
from machinery.errors import InvalidError

LONGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Printed:
    """Certificate and key as in the files."""

    certificate: bytes
    key: bytes = field(repr=False)


def parse_printed(output: bytes, pod: str) -> Printed:
    """`pod` is for error messages. Raises InvalidError that names the failed step."""
    try:
        document = json.loads(output)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidError(f'agent pod "{pod}" printed no JSON object')
    return Printed(_decoded(document, CERTIFICATE, "certificate", pod), _decoded(document, KEY, "key", pod))


def _decoded(document: dict[str, object], name: str, what: str, pod: str) -> bytes:
    try:
        return base64.b64decode(str(document.get(name) or "\0"), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidError(f'agent pod "{pod}" printed a {what} ({name}) that is not base64') from None
