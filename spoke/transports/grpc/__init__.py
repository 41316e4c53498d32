"""Adapter: a hub over gRPC. The agent, not this adapter, decides when to dial and how to react to a loss.

The C core reads its environment when `grpc` is first imported, which happens after this module. This module disables the core's
own log lines about failed handshakes, and its preparation for forks, which never happen.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
