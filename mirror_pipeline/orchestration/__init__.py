"""Dagster's side of a mirror: which assets there are, when lanes run, what the UI shows. The copying itself is the engine's."""
