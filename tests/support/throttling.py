"""A scripted broker under a client quota."""

from __future__ import annotations

import socket
import time

from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import MetadataResponse

from mirror_pipeline.kafka.records.batch import OpenRecord, seal, tail_of
from mirror_pipeline.kafka.wire.messages import Api
from mirror_pipeline.model import TopicPartition
from tests.support.fetch_responses import fetch_response
from tests.support.scripted_broker import Request, negotiate, read_request, reply
from tests.support.scripted_metadata import topic

PLACE = TopicPartition("t", 0)
BATCH = seal([OpenRecord(n, 1000 + n, tail_of(b"k", b"v%d" % n, ())) for n in range(3)], codec=0)


class Throttling:
    """Answers fetches: ``held`` times with nothing but a throttle time, then with a batch; leaves the partition out on ``silent``."""

    def __init__(self, held: int, *, milliseconds: int = 30, silent: bool = False) -> None:
        self.held, self.milliseconds, self.silent = held, milliseconds, silent
        self.asked: list[float] = []
        self.sizes: list[int] = []
        self.port = 0

    def script(self, connected: socket.socket) -> None:
        negotiate(connected)
        while True:
            request = read_request(connected)
            if request.api == Api.METADATA:
                broker = MetadataResponse.MetadataResponseBroker(node_id=4, host="127.0.0.1", port=self.port, rack=None)
                body = MetadataResponse(brokers=[broker], cluster_id="id", controller_id=4, topics=[topic("t", 0, 4)])
                connected.sendall(reply(request, body.encode(version=request.version), tags=b"\0"))
            else:
                connected.sendall(reply(request, self.fetched(request)))

    def fetched(self, request: Request) -> bytes:
        self.asked.append(time.monotonic())
        self.sizes.append(FetchRequest.decode(request.rest, version=request.version).max_bytes)
        if self.silent:
            return bytes(fetch_response({}).encode(version=request.version))
        if len(self.asked) <= self.held:
            return bytes(fetch_response({}, self.milliseconds).encode(version=request.version))
        return bytes(fetch_response({PLACE: (0, 3, 3, 0, None, BATCH)}).encode(version=request.version))
