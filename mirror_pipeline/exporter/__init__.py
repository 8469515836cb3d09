"""Metrics and messages about mirrors, from a process that looks at them."""

METRICS_HOST, METRICS_PORT = "127.0.0.1", 9308
