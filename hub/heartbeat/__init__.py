"""Heartbeats on their way to the database: held, flushed together, acknowledged when they are durable."""

from hub.heartbeat.buffer import BeatBuffer, Sink

__all__ = ["BeatBuffer", "Sink"]
