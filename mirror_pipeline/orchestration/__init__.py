"""Mirrors in Dagster: assets, jobs, sensors, checks and metadata. The engine does the copying."""
