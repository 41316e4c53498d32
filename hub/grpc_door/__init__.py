"""The gRPC door for agents. Servicers translate messages and hold streams; `hub.access` and `hub.registry` decide.

gRPC's C core reads the environment variables below when `grpc` is first imported. This module is always imported earlier.
GRPC_VERBOSITY turns off the C core's own log lines about failed handshakes, which would mix with the hub's log.
GRPC_EXPERIMENTS selects the older listener. It needs half of the newer one's processor time per heartbeat
(bench/heartbeats.py), because the thread that waits for events also reads the sockets.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
