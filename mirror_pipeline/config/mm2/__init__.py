"""Reads a property file of MirrorMaker 2 (dedicated mode) and writes the mirror.yaml that does the same."""
