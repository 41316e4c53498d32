"""Encryption of documents in the database: AES-256-GCM with a list of keys.

A sealed document is `version (1 byte) | key id (4) | nonce (12) | ciphertext and tag`. The encryption also authenticates the
place of the document (kind, namespace, name), so that it cannot be decrypted as another object. The first key of the list
encrypts; all keys decrypt.
"""

import binascii
import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from machinery.errors import InvalidError, UnavailableError

VERSION = b"\x01"
KEY_LENGTH, ID_LENGTH, NONCE_LENGTH = 32, 4, 12
HEADER = len(VERSION) + ID_LENGTH
"""Bytes that identify the key of a sealed document."""


class Seal:
    """Encrypts documents with its first key, and decrypts them with any key. Never display a key; a key id is not secret."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Raises InvalidError if there is no key, or a key does not have 32 bytes."""
        if not keys or any(len(key) != KEY_LENGTH for key in keys):
            raise InvalidError(f"each key for Secrets must have {KEY_LENGTH} bytes, and there must be one at least")
        self._keys = tuple(keys)
        self._ciphers = {header_of(key): AESGCM(key) for key in keys}
        self.header = header_of(keys[0])

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Parse a file: one base64 key per line, the encryption key first; `#` begins a comment line. Raises InvalidError."""
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith(b"#")]
        try:
            return cls([b64decode(line, validate=True) for line in lines])
        except (binascii.Error, ValueError):
            raise InvalidError("a key for Secrets is not base64: make one with `openssl rand -base64 32`") from None

    @classmethod
    def generate(cls) -> Self:
        return cls([os.urandom(KEY_LENGTH)])

    def written(self) -> bytes:
        """Return all keys as the content of a file that `parse` reads."""
        comment = b"# Keys for Secrets in the database: the first seals, all open. Without them the Secrets are lost."
        return b"\n".join((comment, *map(b64encode, self._keys), b""))

    def has_key_for(self, header: bytes) -> bool:
        """Whether a document with this header can be decrypted."""
        return header in self._ciphers

    def closed(self, plain: bytes, place: str) -> bytes:
        """Return `plain` encrypted for `place`, a text such as `ca/ID`. Only `opened` with the same place decrypts it."""
        nonce = os.urandom(NONCE_LENGTH)
        return self.header + nonce + self._ciphers[self.header].encrypt(nonce, plain, place.encode())

    def opened(self, sealed: bytes, place: str) -> bytes:
        """Decrypt a result of `closed`. Raises UnavailableError if its key is missing, it was changed, or `place` differs."""
        cipher = self._ciphers.get(sealed[:HEADER])
        if cipher is None:
            raise UnavailableError(f"{place} is sealed with the key {shown(sealed[:HEADER])}, which this hub does not have")
        nonce, rest = sealed[HEADER : HEADER + NONCE_LENGTH], sealed[HEADER + NONCE_LENGTH :]
        try:
            return cipher.decrypt(nonce, rest, place.encode())
        except InvalidTag:
            raise UnavailableError(f"{place} cannot be opened: it was changed in the database, or moved there") from None


def header_of(key: bytes) -> bytes:
    """Return the header of documents that are encrypted with `key`."""
    return VERSION + sha256(b"key id" + key).digest()[:ID_LENGTH]


def shown(header: bytes) -> str:
    """Return the hexadecimal id of a key, for display."""
    return header[len(VERSION) :].hex()
