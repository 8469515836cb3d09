"""The comparison over a long link, emulated between two network namespaces of this machine: ``python -m benchmarks.wan``."""
