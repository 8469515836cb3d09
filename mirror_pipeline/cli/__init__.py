"""The ``mirror`` command."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # pyarrow brings numpy; its threads, which spin as they start, have no work here
