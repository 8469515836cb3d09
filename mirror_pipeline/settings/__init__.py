"""How mirror.yaml is read and checked; import from :mod:`mirror_pipeline.config`."""
