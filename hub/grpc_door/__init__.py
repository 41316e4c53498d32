"""The gRPC door for agents. Servicers translate messages and hold streams; `hub.access` and `hub.registry` decide.

The C core reads these variables at the first import of `grpc`, which is after the import of this module. Its own log lines
about failed handshakes would mix with the hub's. Its older listener needs half the processor time per heartbeat
(bench/heartbeats.py), because the thread that waits for events also reads the sockets.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
