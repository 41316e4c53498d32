"""Prometheus metrics of the hub. Each metric is declared beside the function that binds it to its source."""

from hub.metrics.all_metrics import METRICS, MetricSources, add_metrics
from hub.metrics.listener import told_metrics

__all__ = ["METRICS", "MetricSources", "add_metrics", "told_metrics"]
