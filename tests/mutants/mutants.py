"""Builds broken on purpose: one textual change each, and the test that must notice it."""

from __future__ import annotations

from dataclasses import dataclass

UNIT = "tests/unit"
SENDING, MAPPING = (f"{UNIT}/engine/tasks/write/test_{name}.py" for name in ("task", "offset_map"))
FILLING = f"{UNIT}/engine/tasks/write/test_filling.py"
TAKING = f"{UNIT}/engine/tasks/read/test_span_builder.py"
TAIL, SHARED = (f"{UNIT}/engine/driver/write/test_{name}.py" for name in ("recovery", "shared_tail"))
JOINING, CONTINUING = (f"{UNIT}/engine/driver/topics/test_{name}.py" for name in ("join", "continuing"))
HOUSE = f"{UNIT}/engine/driver/maintain/test_rounds.py"
LEASE, BUCKET = (f"{UNIT}/buffer/place/test_{name}.py" for name in ("lease", "bucket"))
MODEL = "tests/model/test_model_search.py::test_no_long_story_breaks_the_lane"
COPY = "tests/integration/copy/test_mirror_copy.py"


@dataclass(frozen=True, slots=True)
class Mutant:
    """``old`` stands once in ``file`` and becomes ``new``; then ``test`` must fail and say ``says`` (a regular expression)."""

    name: str
    file: str
    old: str
    new: str
    test: str
    says: str = ""


FAST = (
    Mutant(
        "no tail read after an unknown outcome",
        "engine/driver/write/outcomes.py",
        "        if not any(p.writing.retry_at <= now for p in unknown):\n            return\n",
        "        for part in unknown:\n            part.writing.outcome_unknown = False\n        return\n",
        MODEL, r"I[1459]",
    ),
    Mutant(
        "progress from the ledger alone",
        "engine/driver/state.py", "    outcome_unknown: bool = True\n", "    outcome_unknown: bool = False\n",
        f"{JOINING}::test_a_topic_goes_on_behind_its_ledger_and_its_buffer",
    ),
    Mutant(
        "ordinals come from the present generation only",
        "engine/driver/topics/continuing.py",
        "    known = context.ledger.put_there(each for each in earlier if (each.target_topic_id, each.producer_epoch) == same)\n",
        "    known = context.ledger.put_there([each for each in earlier if (each.target_topic_id, each.producer_epoch) == same][-1:])\n",
        CONTINUING,
    ),
    Mutant(
        "what a killed run sent beyond the ledger is forgotten when its partition joins again",
        "engine/driver/topics/continuing.py", "    begins |= _after_tails(", "    _ = lambda: _after_tails(",
        f"{CONTINUING}::test_the_tail_of_the_log_counts_beyond_the_ledger",
    ),
    Mutant(
        "the ledger is ordered by its hosts' clocks",
        "buffer/tables/rows.py", "key=lambda each: int(each[0][\"revision\"]))", "key=lambda each: each[1])",
        f"{UNIT}/buffer/ledger/test_ledger_order.py",
    ),
    Mutant(
        "reading a tail well ends a partition's patience",
        "engine/driver/write/outcomes.py",
        "        if not part.pending:\n            part.writing.worked()\n",
        "        part.writing.worked()\n",
        f"{UNIT}/engine/driver/write/test_outcomes.py::test_a_partition_that_the_target_does_not_take_is_left_by_a_run_that_ends",
    ),
    Mutant(
        "one topic's refusal is the loss of the target",
        "engine/driver/write/outcomes.py", "        elif answered:\n            self._health.answered()\n", "",
        f"{UNIT}/engine/driver/write/test_outcomes.py::test_what_a_broker_answers_about_one_topic_is_not_the_loss_of_the_target",
    ),
    Mutant(
        "what was read of another topic of that name is committed",
        "engine/driver/read/source.py", "        other = other_ids(self._client, known, names)\n", "        other = dict[str, str]()\n",
        f"{UNIT}/engine/driver/read/test_source_another_log.py", r"recreated",
    ),
    Mutant(
        "whoever answers at an address is the cluster that is meant",
        "kafka/security/identity.py", "        if cluster_id != self.cluster_id:\n", "        if False:\n",
        f"{UNIT}/kafka/security/test_identity.py::test_an_answer_of_another_cluster_is_never_handed_out",
    ),
    Mutant(
        "records are sent before it is known who listens",
        "kafka/wire/connection.py", "self.identify() if api in CHANGES else self._ask_identity()\n", "self._ask_identity()\n",
        f"{UNIT}/kafka/security/test_identity.py::test_what_changes_a_cluster_is_not_even_sent_to_another",
    ),
    Mutant(
        "compaction that overtakes a verification is a difference",
        "verify/record_tasks.py", "        return record.key in self.keys or self.last.get(record.key, -1) > record.offset\n",
        "        return record.key in self.keys\n",
        f"{UNIT}/verify/test_positional.py::test_a_later_record_of_the_key_excuses_one_that_is_gone",
    ),
    Mutant(
        "a task that Spark runs a second time sends again",
        "execution/spark.py", "            if _tried_before():\n", "            if _tried_before() and False:\n",
        f"{UNIT}/execution/test_spark_tasks.py",
    ),
    Mutant(
        "error 45 is taken for success",
        "engine/tasks/write/task.py", "    if answer.error:\n", "    if answer.error not in (0, 45):\n",
        f"{SENDING}::test_no_error_counts_as_written", r"\[45\]",
    ),
    Mutant(
        "a leader that moved is taken for success",
        "engine/tasks/write/task.py", "    if answer.error:\n", "    if answer.error not in (0, 6):\n",
        f"{SENDING}::test_no_error_counts_as_written", r"\[6\]",
    ),
    Mutant(
        "after an error the tail is not asked",
        "engine/tasks/write/task.py",
        "        self.outcome_unknown = self.outcome_unknown or outcome_unknown\n", "        self.outcome_unknown = self.outcome_unknown\n",
        f"{SENDING}::test_no_error_counts_as_written",
    ),
    Mutant(
        "a lost partition is only a refresh",
        "kafka/codes.py", "    return _U if action is _M else action\n", "    return _R if action is _M else action\n",
        f"{UNIT}/kafka/test_codes.py::test_a_leader_that_lost_the_partition_may_have_appended",
    ),
    Mutant(
        "later answers count after a refusal",
        "engine/tasks/write/task.py", "    if slot.stopped and (slot.outcome_unknown or slot.halt is not None):\n",
        "    if slot.halt is not None:\n",
        f"{SENDING}::test_after_a_refusal_later_answers_count_for_nothing",
    ),
    Mutant(
        "a stamp used twice",
        "kafka/records/restamp.py", "        sequence += records\n", "",
        f"{SENDING}::test_every_batch_carries_the_number_of_records_before_it",
    ),
    Mutant(
        "the second span begins with the first one's sequence",
        "engine/tasks/write/task.py", "                sequence += records - known\n", "",
        f"{SENDING}::test_the_numbers_go_on_from_span_to_span",
    ),
    Mutant(
        "a stamp used twice, searched",
        "engine/tasks/write/task.py", "    sequence = work.position.ordinal\n", "    sequence = 0\n",
        MODEL, r"I[1459]",
    ),
    Mutant(
        "the sequence is not cut to 31 bits",
        "kafka/records/restamp.py", "sequence & MAX_SEQUENCE, records\n", "sequence, records\n",
        f"{SENDING}::test_every_batch_carries_the_number_of_records_before_it",
    ),
    Mutant(
        "the end of the log is not asked after the first markers of a task",
        "engine/tasks/write/filling.py", "        elif slot.fenced and counts", "        elif counts",
        f"{FILLING}::test_the_end_of_the_log_is_asked_unless_one_answer_tells_it",
    ),
    Mutant(
        "records follow markers that came too late",
        "engine/tasks/write/filling.py", "slot.end < found.offset <= slot.fill_to", "slot.end < found.offset",
        f"{FILLING}::test_a_late_marker_of_another_process_is_noticed_before_a_record_is_sent",
    ),
    Mutant(
        "two attempts have the same epoch",
        "engine/driver/write/marker_epochs.py", "MarkerStamp(now.producer_id, now.epoch + 1)", "MarkerStamp(now.producer_id, now.epoch)",
        f"{UNIT}/engine/driver/write/test_marker_epochs.py::test_epochs_rise_over_attempts_runs_and_blocks",
    ),
    Mutant(
        "a filled hole moves the map's source alone",
        "engine/tasks/write/offset_map.py",
        ", cause, target_topic), target_end=first + taken))", ", cause, target_topic), target_end=first))",
        f"{MAPPING}::test_with_exact_offsets_the_end_of_the_log_is_the_position",
    ),
    Mutant(
        "the tail does not know that sequences wrap",
        "engine/driver/write/recovery.py", "look.filled) & SEQUENCE_MASK\n", "look.filled)\n",
        f"{TAIL}::test_sequences_are_followed_over_their_end",
    ),
    Mutant(
        "five batches before the first answer",
        "engine/tasks/write/task.py",
        "        return REQUESTS_IN_FLIGHT if self.remembered and", "        return REQUESTS_IN_FLIGHT if not self.acked or",
        f"{SENDING}::test_one_batch_is_on_its_way_before_the_first_answer_and_five_later",
    ),
    Mutant(
        "five batches of records that brokers forget",
        "engine/tasks/write/task.py", "    slot.remembered = batch.newest > forgotten_before\n", "    slot.remembered = True\n",
        f"{SENDING}::test_of_old_records_one_batch_at_a_time_is_on_its_way",
    ),
    Mutant(
        "five batches after a long pause",
        "engine/tasks/write/task.py", " and time.monotonic() - self.acked_at < MEMORY_SECONDS else 1\n", " else 1\n",
        f"{SENDING}::test_after_a_pause_one_batch_is_on_its_way_again",
    ),
    Mutant(
        "the lease is ignored",
        "engine/tasks/write/task.py", "        if time.monotonic() >= deadline:\n", "        if False:\n",
        f"{SENDING}::test_nothing_is_sent_once_the_lease_is_over",
    ),
    Mutant(
        "another writer is ignored when a batch is acknowledged",
        "engine/tasks/write/task.py", "    if answer.base_offset != expected:\n", "    if False:\n",
        f"{SENDING}::test_another_offset_than_expected_is_another_writer",
    ),
    Mutant(
        "another writer is ignored in the tail",
        "engine/driver/write/recovery.py", " or (header.producer_id, header.producer_epoch) != ours:\n", ":\n",
        f"{TAIL}::test_records_of_another_writer_halt",
    ),
    Mutant(
        "a batch missing in the tail is ignored",
        "engine/driver/write/recovery.py", "    if header.base_sequence != expected:\n", "    if False:\n",
        f"{TAIL}::test_a_missing_batch_halts",
    ),
    Mutant(
        "a target that lost records is ignored",
        "engine/driver/write/recovery.py", "    if end.offset < first:\n", "    if False:\n",
        f"{TAIL}::test_a_log_that_ends_before_the_position_halts",
    ),
    Mutant(
        "what is not replicated yet does not count",
        "engine/driver/write/recovery.py", " and end.offset == look.at:\n", ":\n",
        f"{TAIL}::test_what_is_on_the_leader_alone_is_waited_for",
    ),
    Mutant(
        "other writers' records in a shared topic count as ours",
        "engine/driver/write/shared_tail.py", " or (header.producer_id, header.producer_epoch) != stamp:\n", ":\n",
        f"{SHARED}::test_our_records_are_found_among_the_others",
    ),
    Mutant(
        "a batch that a shared topic lacks, or holds twice, is passed over",
        "engine/driver/write/shared_tail.py", "        if left_out > self.absent:", "        if False:",
        f"{SHARED}::test_a_batch_that_is_missing_or_there_twice_halts",
    ),
    Mutant(
        "what was deleted from a shared topic was never sent",
        "engine/driver/write/shared_tail.py", "            return tail_deleted(self.target, self._end) if self.absent else self.tail(at)\n",
        "            return self.tail(at)\n",
        f"{SHARED}::test_records_that_retention_deleted_are_counted_by_what_the_leader_remembers",
    ),
    Mutant(
        "a shared topic's tail counts before it reaches the end of the log",
        "engine/driver/write/recovery.py", " and 0 <= look.goal <= look.at:\n", ":\n",
        f"{SHARED}::test_what_is_on_the_leader_alone_is_waited_for",
    ),
    Mutant(
        "positions move without an acknowledgement",
        "engine/driver/write/outcomes.py",
        "                sends += self._account(part, outcome.records, outcome.landed, outcome.end)\n",
        "                sends += self._account(part, part.pending[0].records if part.pending else 0)\n",
        MODEL, r"I[1589]",
    ),
    Mutant(
        "committed before the file is written",
        "buffer/spans/part_writer.py", "            self._waiting.append(self._format.tail(self._described))\n", "",
        f"{UNIT}/buffer/spans/test_spans_payloads.py::test_payloads_come_back_byte_for_byte",
    ),
    Mutant(
        "the footer does not tell where the payloads lie",
        "buffer/spans/span_pages.py", "            at += length\n", "            at += len(body)\n",
        f"{UNIT}/buffer/spans/test_spans_payloads.py::test_payloads_come_back_byte_for_byte",
    ),
    Mutant(
        "committed before the file is on the disk",
        "buffer/spans/part_writer.py", "                os.fsync(self._sink.fileno())\n", "                pass\n",
        f"{UNIT}/buffer/spans/test_spans_payloads.py::test_a_commit_reaches_the_disk_after_what_it_names",
    ),
    Mutant(
        "a record is written twice under one number",
        "engine/driver/write/ledger_writer.py", "        landed = self._context.ledger.record(self._number, sends, gaps)\n",
        "        landed = self._context.ledger.record(self._context.ledger.last_record() + 1, sends, gaps)\n",
        f"{JOINING}::test_of_two_runs_that_write_one_number_the_second_ends",
    ),
    Mutant(
        "checksums are not checked when staging",
        "engine/tasks/read/plain_run.py", "        if crc32c(data[at + CRC_START : stop], 0, -1) != crc:\n", "        if False:\n",
        f"{TAKING}::test_a_flipped_bit_is_found",
    ),
    Mutant(
        "checksums of batches that are opened are not checked",
        "engine/tasks/read/span_builder.py", "            check(batch, 0, header)\n", "            pass\n",
        f"{TAKING}::test_a_flipped_bit_is_found_in_a_batch_that_is_opened",
    ),
    Mutant(
        "checksums are not checked before stamping",
        "kafka/records/restamp.py", " or crc32c(payload[at + CRC_START : stop], 0, -1) != crc\n", "\n",
        f"{SENDING}::test_damage_done_in_the_buffer_is_not_hidden_under_a_new_checksum",
    ),
    Mutant(
        "aborted records are copied",
        "engine/tasks/read/plain_run.py", "(attributes & _NEVER_PLAIN or producer in open_aborts)", "attributes & _NEVER_PLAIN",
        f"{TAKING}::test_every_batch_of_an_aborted_transaction_becomes_a_hole",
    ),
    Mutant(
        "transaction markers count as records",
        "engine/tasks/read/span_builder.py", "        if header.magic >= 2 and header.is_control:\n", "        if False:\n",
        f"{TAKING}::test_markers_and_aborted_batches_become_holes_and_their_producer_goes_on",
    ),
    Mutant(
        "unexplained offsets are skipped",
        "engine/tasks/read/span_builder.py",
        "            raise self.rules.hole(self.next, to)\n", "            self._miss(to, HoleCause.COMPACTION)\n",
        f"{TAKING}::test_missing_offsets_of_another_topic_halt_or_are_recorded",
    ),
    Mutant(
        "what lies behind a lost stretch is taken",
        "engine/tasks/read/parallel_read.py", " or builder.next < segment.start:\n", ":\n",
        "tests/unit/engine/tasks/read/test_parallel_read.py::test_nothing_behind_a_missing_stretch_is_taken",
    ),
    Mutant(
        "what was read ahead is used wherever it begins",
        "engine/tasks/longlink/read_ahead.py", "first is not None and first.start > starts[source]", "first is None",
        "tests/unit/engine/tasks/longlink/test_read_ahead.py::test_what_does_not_fit_does_not_go_on",
    ),
    Mutant(
        "a hole loses its cause",
        "engine/tasks/write/offset_map.py", "        cause=cause,\n", "        cause=None,\n",
        f"{MAPPING}::test_trailing_holes_are_passed_with_the_last_record",
    ),
    Mutant(
        "holes are counted as records",
        "engine/tasks/write/offset_map.py",
        "        taken = 0 if cause else min(end - first, left)\n", "        taken = min(end - first, left)\n",
        f"{MAPPING}::test_the_map_is_total_monotone_and_right",
    ),
    Mutant(
        "gap rows are not written",
        "engine/driver/write/ledger_writer.py", "        gaps = self._gaps(sends)\n", "        gaps: list[Gap] = []\n",
        f"{JOINING}::test_every_loss_gets_a_gap_and_nothing_else_does",
    ),
    Mutant(
        "spans of another life of a topic are sent",
        "engine/driver/topics/join.py", " or span.incarnation != run.incarnation or", " or",
        f"{JOINING}::test_spans_of_another_life_of_the_topic_are_not_sent",
    ),
    Mutant(
        "eviction ignores positions",
        "buffer/spans/eviction.py",
        "        safe = span.end <= produced.get((span.topic, span.partition, span.incarnation), -1)\n", "        safe = True\n",
        f"{HOUSE}::test_only_what_is_produced_and_verified_leaves_however_full_it_is",
    ),
    Mutant(
        "eviction ignores verification",
        "engine/driver/maintain/rounds.py",
        "self.spans.produced(safe_ends(reached, self.ledger.verified()))", "self.spans.produced(reached)",
        f"{HOUSE}::test_only_what_is_produced_and_verified_leaves_however_full_it_is",
    ),
    Mutant(
        "not all replicas are waited for",
        "kafka/produce.py", "ALL_REPLICAS = -1\n", "ALL_REPLICAS = 1\n",
        MODEL, "acks=1",
    ),
    Mutant(
        "an old answer is taken for the source's end",
        "engine/driver/read/source.py",
        "                if part.source in answers and answers[part.source].last_stable_offset >= part.staged:\n",
        "                if part.source in answers and answers[part.source].last_stable_offset < part.staged:\n"
        "                    halt = divergence.truncated(part.source, answers[part.source].last_stable_offset, part.staged)\n"
        "                    self._state.halt(part.source.topic, halt, sendable=True)\n"
        "                elif part.source in answers:\n",
        MODEL, "the source's log was truncated",
    ),
    Mutant(
        "a leader that cannot tell yet ends the lane",
        "engine/driver/read/source.py",
        "        except (BrokerError, ConnectionLost) as error:\n            self._note_silent()\n",
        "        except ConnectionLost as error:\n            self._note_silent()\n",
        MODEL, "a run failed: BrokerError",
    ),
    Mutant(
        "a lease is taken over from a holder that is alive",
        "buffer/place/lease.py", "            if now - since < length:\n", "            if False:\n",
        f"{LEASE}::test_only_a_lease_that_was_seen_unchanged_for_its_whole_length_is_taken_over",
    ),
    Mutant(
        "a holder goes on when its lease is over",
        "buffer/place/lease.py", "        if not self.left:\n", "        if False:\n",
        f"{LEASE}::test_a_holder_stops_before_anybody_can_have_taken_over_and_goes_on_if_nobody_has",
    ),
    Mutant(
        "a holder goes on when another one has its lane",
        "buffer/place/lease.py", "                self._lost = True\n", "                self._lost = False\n",
        f"{LEASE}::test_a_holder_that_wakes_late_finds_that_it_is_none",
    ),
    Mutant(
        "a lease is written whatever lies there",
        "buffer/place/bucket.py", 'self._put_if(name, data, {"e_tag": etag})', 'self._put_if(name, data, "overwrite")',
        f"{LEASE}::test_of_two_who_take_over_one_succeeds",
    ),
    Mutant(
        "a new holder leaves the number to the last one",
        "buffer/spans/spans.py", "        self._log.fence(SPANS_APP_ID, 0)\n", "        pass\n",
        f"{BUCKET}::test_a_holder_that_wakes_in_its_commit_comes_too_late",
    ),
)  # fmt: skip

SLOW = (
    Mutant(
        "open transactions are read",
        "kafka/fetch.py",
        "    parts = [_HEAD.pack(CONSUMER_REPLICA, max_wait_ms, min_bytes, max_bytes, isolation)]\n",
        "    parts = [_HEAD.pack(CONSUMER_REPLICA, max_wait_ms, min_bytes, max_bytes, 0)]\n",
        f"{COPY}::test_all_shapes_are_copied_once[4.4.0]",
    ),
    Mutant(
        "a copy begins in a topic that is not empty",
        "engine/driver/topics/target.py", "        if count and not topic.filled:\n", "        if False:\n",
        f"{COPY}::test_a_lost_ledger_never_doubles_records",
    ),
)  # fmt: skip
