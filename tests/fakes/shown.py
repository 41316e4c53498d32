"""Requests on connections where a certificate was shown and verified."""

import asyncio
import ssl
from typing import Any

from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from machinery.kubeconfig import Credential


class Shown(asyncio.Transport):
    """Such a connection."""

    def __init__(self, credential: Credential | None) -> None:
        super().__init__()
        self._der = None if credential is None else ssl.PEM_cert_to_DER_cert(credential.chain.decode())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "ssl_object" and self._der is not None else default

    def getpeercert(self, *, binary_form: bool) -> bytes | None:
        assert binary_form
        return self._der


def request(credential: Credential | None, *headers: tuple[str, str]) -> web.Request:
    return make_mocked_request("GET", "/", headers=CIMultiDict(headers), transport=Shown(credential))
