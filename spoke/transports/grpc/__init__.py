"""Adapter: a hub over gRPC. The agent, not this adapter, decides when to dial and how to react to a loss.

This module sets environment variables for gRPC's C core, so it must be imported before `grpc`. The variables disable the log
lines of the core about failed handshakes. They also disable its fork support, because the agent does not fork.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
