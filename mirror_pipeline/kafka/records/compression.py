"""The five codecs of Kafka batches, with bounded output: garbage and decompression bombs raise CorruptBatch.

aiokafka.codec decompresses without a bound and lets zlib and struct errors out, so its decoders are not used.
Encoded bytes depend on the input alone (no gzip mtime): sealing the same records twice gives the same batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct

import cramjam

from mirror_pipeline.errors import CorruptBatch

UNCOMPRESSED, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

MAX_OPENED_BYTES = 512 << 20  # no producer fills one batch with more; a bomb must not take the task's memory

_GZIP_WINDOW = 31  # zlib: 15 bits of window, plus 16 for a gzip header
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK = 32 * 1024
_SNAPPY_RATIO = 32  # a snappy copy element gives at most 64 bytes for 3
_INT = Struct(">i")
_FIRST_GUESS = 64 * 1024


def compress(codec: int, data: bytes) -> bytes:
    """Encode with a codec number as in the batch attributes, at the default level of Kafka's Java producer."""
    if codec == UNCOMPRESSED:
        return data
    if codec == GZIP:
        deflater = zlib.compressobj(wbits=_GZIP_WINDOW)
        return deflater.compress(data) + deflater.flush()
    if codec == SNAPPY:
        return _snappy_encode(data)
    if codec == LZ4:
        # blocks must be independent (KIP-57)
        packer = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
        packer.compress(data)
        return bytes(packer.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3))
    raise ValueError(f"no codec has number {codec}")


def decompress(codec: int, data: bytes) -> bytes:
    """Decode what follows the header of a compressed batch.

    Raises:
        CorruptBatch: Unknown codec, malformed data, or more than ``MAX_OPENED_BYTES`` come out.
    """
    if codec == UNCOMPRESSED:
        return data
    decode = _DECODERS.get(codec)
    if decode is None:
        raise CorruptBatch(f"no codec has number {codec}", hint="the batch was written by a newer Kafka")
    try:
        return decode(data)
    except (zlib.error, cramjam.DecompressionError, ValueError, OSError) as error:
        raise CorruptBatch(f"{CODEC_NAMES[codec]} data is malformed: {error}") from error


def _too_much() -> CorruptBatch:
    return CorruptBatch(f"a batch opens to more than {MAX_OPENED_BYTES} bytes")


def _gzip_decode(data: bytes) -> bytes:
    members, size = [], 0
    while True:
        inflater = zlib.decompressobj(_GZIP_WINDOW)
        members.append(inflater.decompress(data, MAX_OPENED_BYTES - size + 1))
        size += len(members[-1])
        if size > MAX_OPENED_BYTES:
            raise _too_much()
        if not inflater.eof:
            raise CorruptBatch("gzip data is cut off")
        data = inflater.unused_data
        if not data.startswith(b"\x1f\x8b"):  # like Java's GZIPInputStream: further members count, anything else does not
            return b"".join(members)


def _snappy_encode(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts += (_INT.pack(len(block)), block)
    return b"".join(parts)


def _snappy_decode(data: bytes) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _snappy_block(data, MAX_OPENED_BYTES)
    # the two version numbers after the magic are ignored: Redpanda's clients wrote them little-endian
    position, end, left = len(_XERIAL_HEADER), len(data), MAX_OPENED_BYTES
    parts: list[bytes] = []
    while position < end:
        if position + 4 > end:
            raise CorruptBatch("snappy data is cut off")
        start = position + 4
        position = start + _INT.unpack_from(data, position)[0]
        if not start < position <= end:
            raise CorruptBatch("a snappy block has an impossible length")
        parts.append(_snappy_block(data[start:position], left))
        left -= len(parts[-1])
    return b"".join(parts)


def _snappy_block(data: bytes, limit: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(data)
    if size > limit:
        raise _too_much()
    if size > _SNAPPY_RATIO * len(data):
        raise CorruptBatch("a snappy block announces more than it can hold")
    return bytes(cramjam.snappy.decompress_raw(data))


def _growing(decode_into: Callable[[bytes, bytearray], int], data: bytes) -> bytes:
    """Decode into a buffer that grows up to the bound, since neither format must announce its size."""
    size = min(max(_FIRST_GUESS, 8 * len(data)), MAX_OPENED_BYTES)
    while True:
        out = bytearray(size)
        try:
            filled = decode_into(data, out)
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):  # cramjam's words for "the output is too small"
                raise
            if size >= MAX_OPENED_BYTES:
                raise _too_much() from error
            size = min(size * 8, MAX_OPENED_BYTES)
        else:
            return bytes(memoryview(out)[:filled])


_DECODERS: dict[int, Callable[[bytes], bytes]] = {
    GZIP: _gzip_decode,
    SNAPPY: _snappy_decode,
    LZ4: lambda data: _growing(cramjam.lz4.decompress_into, data),
    ZSTD: lambda data: _growing(cramjam.zstd.decompress_into, data),
}
