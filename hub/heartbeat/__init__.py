"""Heartbeats on their way to the database: held, flushed together, acknowledged when they are durable."""

from hub.heartbeat.buffer import BeatBuffer, BeatSink, PendingBeat
from hub.heartbeat.coverage import HeartbeatCoverage

__all__ = ["BeatBuffer", "BeatSink", "HeartbeatCoverage", "PendingBeat"]
