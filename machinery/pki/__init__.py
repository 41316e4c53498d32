"""Keys, requests and certificates (X.509). Of other modules, only `runtime.tls` and `backup_keys` use `cryptography`."""

from machinery.pki.authority import CertificateAuthority, create_authority, random_serial
from machinery.pki.certificates import (
    REASONS,
    CertificateFacts,
    Plan,
    RevocationList,
    RevokedSerial,
    Usage,
    end_of,
    is_issued_by,
    is_list_of,
    key_matches,
    list_to_pem,
    parse_certificate,
    parse_chain,
    parse_list,
    split_bundle,
)
from machinery.pki.keys import generate_key, key_hash, public_key_of
from machinery.pki.requests import MAX_REQUEST_BYTES, CSRFacts, build_request, check_request, parse_request
from machinery.pki.tokens import KeySet, TokenHeader, TokenKeys, read_header, unverified_claims

__all__ = [
    "MAX_REQUEST_BYTES",
    "REASONS",
    "CSRFacts",
    "CertificateAuthority",
    "CertificateFacts",
    "KeySet",
    "Plan",
    "RevocationList",
    "RevokedSerial",
    "TokenHeader",
    "TokenKeys",
    "Usage",
    "build_request",
    "check_request",
    "create_authority",
    "end_of",
    "generate_key",
    "is_issued_by",
    "is_list_of",
    "key_hash",
    "key_matches",
    "list_to_pem",
    "parse_certificate",
    "parse_chain",
    "parse_list",
    "parse_request",
    "public_key_of",
    "random_serial",
    "read_header",
    "split_bundle",
    "unverified_claims",
]
