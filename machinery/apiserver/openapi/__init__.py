"""OpenAPI documents: version 3 per group and version, version 2 in one document, as JSON and as protobuf.

Generated from the `Resource` values that also serve the requests, so both always agree.
"""

from machinery.apiserver.openapi.published import OpenApi

__all__ = ["OpenApi"]
