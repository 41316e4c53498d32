"""OpenAPI documents of a server's groups: version 3 per group and version, version 2 in one, as JSON and as protobuf.

Made from the same `Resource` values that answer the requests, so that what is published is what is served.
"""

from machinery.apiserver.openapi.published import OpenApi

__all__ = ["OpenApi"]
