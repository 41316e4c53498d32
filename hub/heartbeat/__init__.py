"""Buffers heartbeats, stores them together in the database, and then acknowledges them."""

from hub.heartbeat.buffer import BeatBuffer, BeatSink, PendingBeat
from hub.heartbeat.coverage import HeartbeatCoverage

__all__ = ["BeatBuffer", "BeatSink", "HeartbeatCoverage", "PendingBeat"]
