"""Buffers heartbeats, flushes them to the database together, and acknowledges them when they are durable."""

from hub.heartbeat.buffer import BeatBuffer, BeatSink, PendingBeat
from hub.heartbeat.coverage import HeartbeatCoverage

__all__ = ["BeatBuffer", "BeatSink", "HeartbeatCoverage", "PendingBeat"]
