"""``python -m mirror_pipeline.cli``: the same as ``mirror``."""

from __future__ import annotations

from mirror_pipeline.cli.main import app

app()
