"""CAs as other programs make them: with RSA keys, without key identifiers, and leaves that pass for one."""

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
TEN_YEARS = timedelta(days=3650)


def rsa_key() -> rsa.RSAPrivateKey:
    """As kubeadm makes them."""
    return rsa.generate_private_key(65537, 2048)


def pem_of(key: Key, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def self_signed(
    key: Key, name: str = "kubernetes", *, is_ca: bool = True, identified: bool = True, lives: timedelta = TEN_YEARS
) -> bytes:
    """A certificate over `key` in PEM. `identified`: with a subject key identifier."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGUN)
        .not_valid_after(BEGUN + lives)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if identified:
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
