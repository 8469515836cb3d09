"""Kafka on the wire: record batches and the raw protocol. Knows bytes and brokers, nothing of Spark or Delta."""
