"""What the cert agent's `print` says: a certificate and its key. No error of this module holds a part of it."""

import base64
import binascii
import json
from dataclasses import dataclass, field

from hub.kubecert.__main__ import CERTIFICATE, KEY
from machinery.errors import InvalidError

LONGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Printed:
    """Both as they stand in the files."""

    certificate: bytes
    key: bytes = field(repr=False)


def parse_printed(output: bytes, pod: str) -> Printed:
    """`pod` names it in errors. Raises InvalidError that says which step failed."""
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
