"""Buffers heartbeats, flushes them to the database together, and acknowledges durable ones."""

from hub.heartbeat.buffer import BeatBuffer, BeatSink, PendingBeat
from hub.heartbeat.coverage import HeartbeatCoverage

__all__ = ["BeatBuffer", "BeatSink", "HeartbeatCoverage", "PendingBeat"]
