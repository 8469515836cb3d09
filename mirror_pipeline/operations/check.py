"""``check``: whether a mirror can run. It reads both clusters and the buffer; it changes nothing on the clusters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from mirror_pipeline.buffer.place.place import open_lane, open_to_others
from mirror_pipeline.buffer.place.space import SpaceWatch
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import MirrorError, UsageError
from mirror_pipeline.execution.java import find_java
from mirror_pipeline.execution.placement import spark_may_be_needed
from mirror_pipeline.flow import Flow
from mirror_pipeline.halts import ENDED
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.needs import SOURCE_NEEDS, TARGET_NEEDS, Need
from mirror_pipeline.lags import HALTED
from mirror_pipeline.operations.state.plan import Notes, plan
from mirror_pipeline.reports import Finding
from mirror_pipeline.text import plural
from mirror_pipeline.topics import rights
from mirror_pipeline.topics.lanes import Selected, lane_names, select_topics
from mirror_pipeline.topics.select import unmatched
from mirror_pipeline.units import rounded_size


def check(flow: Flow, notes: Sequence[Notes] = (), more: Sequence[Callable[[Flow], list[Finding]]] = ()) -> list[Finding]:
    """See :meth:`Mirror.check`; ``notes`` and ``more`` findings are those of features."""
    findings = [
        _try("Java", lambda: _java(flow)),
        _buffer(flow),
        _try(f"source {flow.settings.source}", lambda: _reach(flow.source_admin(), WireClient(flow.source), SOURCE_NEEDS)),
        _try(f"target {flow.settings.target}", lambda: _reach(flow.target_admin(), WireClient(flow.target), TARGET_NEEDS)),
    ]
    if all(finding.ok for finding in findings[2:]):
        findings += _two_clusters(flow)
    if all(finding.ok for finding in findings[2:]):
        copies = [_try(f"copy {each.alias}", partial(_copy, flow, each)) for each in flow.copies]
        findings += [*copies, *_topic_findings(flow, notes), *(finding for look in more for finding in look(flow))]
    return findings


def _two_clusters(flow: Flow) -> list[Finding]:
    try:
        flow.meet()
    except UsageError as error:
        return [_failed("clusters", error)]
    return []


def _buffer(flow: Flow) -> Finding:
    """Whether the buffer can be written, and whether its disk has room for `buffer.max_bytes`."""
    cap = flow.config.buffer.max_bytes
    try:
        store = open_lane(flow.config.buffer, flow.name, lane_names(flow.settings)[0])
        room = SpaceWatch(store, cap=cap, micro_batch=flow.settings.engine.micro_batch_bytes).measure()
    except MirrorError as error:
        return _failed("buffer", error)
    hint = "free space on its disk, choose another with buffer.uri, or lower buffer.max_bytes"
    if room.why_full:
        return Finding("buffer", False, f"{store.uri} is full: {room.why_full}", hint)
    detail = f"{store.uri} can be written"
    if room.used + room.free < cap:
        free = f"its disk has {rounded_size(room.free)} free, buffer.max_bytes is {rounded_size(cap)}"
        detail += f"; warning: {free}, so the disk may fill up first: {hint}"
    if exposed := open_to_others(store):
        detail += f"; warning: {exposed}"
    return Finding("buffer", True, detail)


def _java(flow: Flow) -> str:
    if not spark_may_be_needed(flow.settings.engine):
        return "not needed for copying: everything runs in this process (engine.inline_bytes); large verifications start Spark"
    return f"found {find_java()}"


def _reach(admin: Admin, client: WireClient, needs: Collection[Need]) -> str:
    """Both clients must connect: librdkafka for administration, the wire protocol for data. The brokers must not be too old."""
    with admin, client:
        client.require(needs)
        info = admin.describe()
    return f"{len(info.brokers)} broker{'s' if len(info.brokers) != 1 else ''}, cluster id {info.cluster_id}"


def _copy(flow: Flow, copy: ClusterSettings) -> str:
    """A cluster of ``sources``: whether it answers, and how many of the mirror's topics it has."""
    said = _reach(Admin(copy), WireClient(copy), SOURCE_NEEDS)
    wanted = select_topics(flow.config, flow.settings, flow.source_topics()).topics
    with WireClient(copy) as client:
        there = [topic for topic in client.metadata(sorted(wanted)).topics.values() if not topic.error]
    return f"{said}; has {len(there)} of {plural(len(wanted), 'topic')}, each compared before it is read"


def _topic_findings(flow: Flow, notes: Sequence[Notes]) -> list[Finding]:
    names = flow.source_topics()
    try:
        selected = select_topics(flow.config, flow.settings, names)
    except MirrorError as error:
        return [_failed("topics", error)]
    found = _selection(flow, names, selected)
    return [found, *_plan_findings(flow, notes)] if selected.topics or selected.refused else [found]


def _selection(flow: Flow, names: list[str], selected: Selected) -> Finding:
    silent = unmatched(names, flow.settings.topics.include)
    count = len(selected.topics)
    detail = "; ".join([f"{count} of {len(names)} topics selected", *silent])
    hidden = rights.unseen(flow.source, flow.settings.topics.include, names)
    if not names and hidden:
        return Finding("topics", False, f"cluster {flow.source.alias} has no topics, or none that this principal may describe", hidden)
    hint = hidden or ("" if count or not names else "regexes match whole names; `mirror plan` shows why each topic is excluded")
    return Finding("topics", bool(count), detail, hint)


def _plan_findings(flow: Flow, notes: Sequence[Notes]) -> Iterable[Finding]:
    answer = plan(flow, notes, priced=False)
    for topic in answer.topics:
        if topic.state == HALTED:
            yield Finding(f"topic {topic.topic}", False, f"halted ({topic.code or 'no code'}): {topic.reason}", topic.hint)
        elif topic.code == ENDED:
            yield Finding(f"topic {topic.topic}", True, f"{topic.state}: {topic.reason}")
        elif topic.blockers:
            yield Finding(f"topic {topic.topic}", False, "; ".join(topic.blockers))
        elif topic.warnings:
            yield Finding(f"topic {topic.topic}", True, f"to {topic.target_topic}; {'; '.join(topic.warnings)}")
        else:
            yield Finding(f"topic {topic.topic}", True, f"to {topic.target_topic}")
    yield from (Finding("last run", True, note) for note in answer.notes)


def _try(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except MirrorError as error:
        return _failed(what, error)


def _failed(what: str, error: MirrorError) -> Finding:
    return Finding(what, False, error.message, error.hint)
