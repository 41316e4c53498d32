"""Heartbeats on their way to the database: held, flushed together, acknowledged when they are durable."""

from hub.heartbeat.buffer import BeatBuffer, Held, Sink
from hub.heartbeat.coverage import Hearing

__all__ = ["BeatBuffer", "Hearing", "Held", "Sink"]
