"""The CA that comes, changes and goes: what is taken, what is refused, and who is told."""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from hub.issuer import AuthorityProvider
from machinery import pki
from machinery.errors import InvalidError
from tests.fakes.foreign_ca import pem_of, rsa_key, self_signed


class Listener:
    """Counts how often it was told."""

    def __init__(self) -> None:
        self.told = 0

    def __call__(self) -> None:
        self.told += 1


def pair(name: str = "kubernetes") -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    return self_signed(key, name), pem_of(key)


def test_a_provider_goes_through_good_and_bad_pairs_and_holds_the_last_good_one() -> None:
    """Pinniped's ten steps of a dynamic CA."""
    provider, listener = AuthorityProvider(), Listener()
    provider.listen(listener)
    one, other = pair(), pair("other")

    assert provider.current is None
    assert provider.certificate == b""
    for refused in ((one[0], b""), (b"", one[1])):  # only a certificate, only a key
        with pytest.raises(InvalidError):
            provider.set(*refused)
    assert (provider.current, listener.told) == (None, 0)

    provider.set(*one)
    assert (provider.certificate, listener.told) == (one[0], 1)
    provider.set(*one)  # the same again
    assert (provider.certificate, listener.told) == (one[0], 2)
    provider.set(*other)
    assert (provider.certificate, listener.told) == (other[0], 3)

    bad: list[tuple[bytes, bytes]] = [(b"bad", other[1]), (other[0], b"bad"), (one[0], other[1])]
    for refused in bad:
        with pytest.raises(InvalidError):
            provider.set(*refused)
        assert (provider.certificate, listener.told) == (other[0], 3), "what was good stays, and nobody is told"

    provider.set(*one)
    assert (provider.certificate, listener.told) == (one[0], 4)


def test_an_unset_provider_holds_nothing_and_tells_it() -> None:
    provider, listener = AuthorityProvider(), Listener()
    provider.set(*pair())
    end = provider.listen(listener)
    provider.unset()
    assert (provider.current, provider.certificate, listener.told) == (None, b"", 1)
    end()
    provider.set(*pair())
    assert listener.told == 1, "who listens no more is not told"


def test_a_leaf_never_signs() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(InvalidError, match="not one of a certificate authority"):
        AuthorityProvider().set(self_signed(key, is_ca=False), pem_of(key))


def test_a_bundle_is_not_one_ca() -> None:
    one, other = pair(), pair()
    with pytest.raises(InvalidError, match="more than one certificate"):
        AuthorityProvider().set(one[0] + other[0], one[1])


@pytest.mark.parametrize("form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("make", [rsa_key, lambda: ec.generate_private_key(ec.SECP384R1())])
def test_keys_as_kubernetes_tools_make_them_are_taken(make: object, form: serialization.PrivateFormat) -> None:
    assert callable(make)
    key = make()
    provider = AuthorityProvider()
    provider.set(self_signed(key), pem_of(key, form))
    assert provider.current is not None


def test_a_short_rsa_key_is_refused() -> None:
    key = rsa.generate_private_key(65537, 1024)  # noqa: S505 - it is refused
    with pytest.raises(InvalidError, match="2048 bits or more"):
        AuthorityProvider().set(self_signed(key), pem_of(key))


def test_no_error_and_no_representation_holds_a_key() -> None:
    certificate, key = pair()
    provider = AuthorityProvider()
    provider.set(certificate, key)
    with pytest.raises(InvalidError) as refused:
        provider.set(pair()[0], key)
    body = key.decode().splitlines()[1]
    assert body not in repr(provider) + str(refused.value) + repr(refused.value)
    assert pki.key_matches(provider.certificate, key)
