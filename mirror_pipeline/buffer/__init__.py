"""Spans and ledger in Delta: what was read from the source and not yet forgotten, and what happened to it."""
