"""``python -m mirror_pipeline.cli``: the same as ``mirror``."""

from __future__ import annotations

import sys

from mirror_pipeline.cli.main import main

sys.exit(main())
