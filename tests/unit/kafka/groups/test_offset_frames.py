"""Committed offsets as bytes: the same as kafka-python's schemas write and read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchResponse

from mirror_pipeline.kafka.groups.offset_frames import (
    COMMIT_VERSION,
    FETCH_VERSION,
    Commit,
    commit_body,
    commit_codes,
    fetched_offsets,
)
from mirror_pipeline.model import TopicPartition

NAMES = st.text(min_size=1, max_size=200)
OFFSETS = st.integers(0, 2**63 - 1)
PLACES = st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1))
COMMITS = st.dictionaries(PLACES, st.builds(Commit, OFFSETS, st.text(max_size=200)), max_size=12)
CODES = st.integers(-1, 200)


def by_topic(places: list[TopicPartition]) -> dict[str, list[TopicPartition]]:
    return {name: [tp for tp in places if tp.topic == name] for name in sorted({tp.topic for tp in places})}


@given(NAMES, COMMITS)
def test_a_commit_is_what_the_schema_reads(group: str, commits: dict[TopicPartition, Commit]) -> None:
    read = OffsetCommitRequest.decode(commit_body(group, commits), version=COMMIT_VERSION)
    assert (read.group_id, read.generation_id_or_member_epoch, read.member_id, read.group_instance_id) == (group, -1, "", None)
    found = {
        TopicPartition(topic.name, part.partition_index): (part.committed_offset, part.committed_metadata, part.committed_leader_epoch)
        for topic in read.topics
        for part in topic.partitions
    }
    assert found == {tp: (offset, metadata, -1) for tp, (offset, metadata) in commits.items()}


@given(st.dictionaries(PLACES, CODES, max_size=12), st.integers(0, 10_000))
def test_the_answer_to_a_commit_is_read(codes: dict[TopicPartition, int], throttle: int) -> None:
    kind = OffsetCommitResponse.OffsetCommitResponseTopic
    part = kind.OffsetCommitResponsePartition
    topics = [
        kind(name=name, partitions=[part(partition_index=tp.partition, error_code=codes[tp]) for tp in own])
        for name, own in by_topic(list(codes)).items()
    ]
    body = OffsetCommitResponse(throttle_time_ms=throttle, topics=topics).encode(version=COMMIT_VERSION)
    assert commit_codes(memoryview(bytes(body))) == (throttle, codes)


@given(st.lists(st.tuples(NAMES, st.sampled_from((0, 15, 30)), COMMITS), max_size=4), st.integers(0, 10_000), st.booleans())
def test_fetched_offsets_are_read(groups: list[tuple[str, int, dict[TopicPartition, Commit]]], throttle: int, null: bool) -> None:
    """Partitions with an error, and without a commit, are left out; metadata may be null."""
    kind = OffsetFetchResponse.OffsetFetchResponseGroup
    topic, part = kind.OffsetFetchResponseTopics, kind.OffsetFetchResponseTopics.OffsetFetchResponsePartitions
    written = []
    for name, code, commits in groups:
        topics = []
        for topic_name, own in by_topic(list(commits)).items():
            parts = [
                part(
                    partition_index=tp.partition, committed_offset=commits[tp].offset, committed_leader_epoch=3,
                    metadata=None if null and not commits[tp].metadata else commits[tp].metadata, error_code=0,
                )
                for tp in own
            ]  # fmt: skip
            parts.append(part(partition_index=0, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=0))
            parts.append(part(partition_index=1, committed_offset=5, committed_leader_epoch=-1, metadata="", error_code=3))
            topics.append(topic(name=topic_name, partitions=parts))
        written.append(kind(group_id=name, topics=topics, error_code=code))
    body = OffsetFetchResponse(throttle_time_ms=throttle, groups=written).encode(version=FETCH_VERSION)
    assert fetched_offsets(memoryview(bytes(body))) == (throttle, groups)
