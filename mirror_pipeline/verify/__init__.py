"""Verification: digests, Merkle trees, comparison record by record, repair."""
