"""The prose of docs/benchmarks.md; figures are put between by ``benchmarks.page``."""

HEAD = """
# Benchmarks: comparison with MirrorMaker 2

<!-- Made by `python -m benchmarks.page` from benchmarks/results/*.json; change the results or the generator, not this page. -->

Mirror Pipeline and Kafka's MirrorMaker 2 copy the same topics between the same two embedded clusters, in turn, on one machine.
MirrorMaker 2 runs twice: with default settings, and tuned (every setting with its reason is [below](#mirrormaker-2s-settings)). Mirror
Pipeline runs with default settings. It stages every byte on disk, flushed, before it sends it; MirrorMaker 2 has no buffer. `limit` is a
plain client that fetches and produces with nothing between (`benchmarks/limit.py`): what brokers and the wire allow on the same cores.

```
make bench                                  # everything; the large copies need about 55 GB of disk
make bench BENCH=--quick                    # four workloads, smaller, under 6 minutes
make bench BENCH="--only large"             # copies of which Spark carries most; --scale 0.5 for half the disk
make bench BENCH="--only 1kb,latency"       # some; --scale, --rounds, --sides, --resume: see --help
sudo .venv/bin/python -m benchmarks.wan     # over an emulated long link; needs root, gcc, iproute2
.venv/bin/python -m benchmarks.memory_peak  # peak memory of a copy; --round-trip-ms 200: over such a link
.venv/bin/python -m benchmarks.many_topics  # a scrape, the page and the exporter's CPU with 1,000 topics
.venv/bin/python -m benchmarks.wan.several  # one topic from three clusters over links of 20, 100 and 200 ms; root
.venv/bin/python -m benchmarks.trickle      # latency, CPU, memory and commits at a low rate
.venv/bin/python -m benchmarks.quota_rate   # copy, verify and lag under client quotas, compared with the quotas
.venv/bin/python -m benchmarks.groups       # what a round over 1,000 consumer groups costs
```
A run prints a table and writes every round, medians and ratios to `build/bench/*.json`, with charts next to them.
`python -m benchmarks.page build/bench/versus.json` generates this page from a full run.
"""

NOT_YET = """
## Results

**Not measured yet.** This page does not contain a full run.
"""

WAN_HEAD = """
## A long link

The source broker is at one end, the target broker and the mirror are at the other, and `benchmarks/wan/link.c` emulates the link: fixed
delay, fixed rate with a drop-tail queue, random loss in each direction. The emulation uses part of the same cores.

- Brokers keep Kafka's default socket settings (100 KiB buffers), which limit a single connection on such a link. Both ends use the
  congestion control in the row's label.
- A copy that takes too long is stopped some seconds after its first record; its rate is that of the data that arrived.
- The tuned MirrorMaker 2 has one task for each of the 12 partitions here.
- With default settings MirrorMaker 2 has one consumer that requests up to 1 MiB of each partition at once. On one connection of this link
  such a response takes about 30 s, its `request.timeout.ms`. A response that takes longer is discarded and requested again, indefinitely
  (its log shows a request timeout every 30 seconds).
"""

WAN_NOT_YET = """
**Not measured yet.**
"""

GROUPS_HEAD = """
## Consumer groups

`benchmarks/groups.py` measures rounds over consumer groups in the mirror's process. A round lists the groups of both clusters, reads what
the source's have committed, translates it and writes it on the target. CPU-seconds are those of this process (user and system), not of
the brokers; the share of a core is that of one round in each interval.
"""

GROUP_ROUNDS = {
    "new": "first: every group is new",
    "changing": "every offset has changed",
    "steady": "no offset has changed; one round in sixty looks at everything",
}

MEANING = """
## What each figure means

| figure | meaning |
|---|---|
| MB/s, k rec/s | steady state: from the first sample that shows records on the target to the sample that shows the last one; records in the first sample are not counted. MB are bytes of the source's log on disk, compressed where the source is, for every side |
| % of limit | MB/s divided by that of `limit` |
| Spark % | share of the bytes that Spark's tasks read; the mirror's own process read the others |
| warm | the same for the second half of the records only, after just-in-time compilation |
| MB/CPU-s, k rec/CPU-s | per CPU-second (user and system) of all processes of the mirror, including Java, Python and ended child processes, from the moment the source starts to send data until half a second after the last record arrived. Read-ahead and bookkeeping are included, start-up is not |
| brokers CPU-s | CPU-seconds of both brokers in the same period; the JSON has each one separately |
| start s | from the launch of the process to the first record on the target |
| total s | from the launch to the last record, including start-up |
| RSS MB | maximum of the sum of resident memory of all processes of the mirror; pages shared by processes are counted in each. The JSON has the peak of each process |
| process MB | peak of the largest process: the Python process of Mirror Pipeline, the Java process of MirrorMaker |
| p50, p90, p99, max ms | age of records when a consumer of the target receives them. The producer writes the time into each record; producer and consumer are separate processes with the same clock. The first 10 seconds are excluded |
| % of a core | CPU of the mirror's processes while latency or idle load is measured |
| idle CPU-s | the same in seconds, over the whole observation; brokers CPU-s are those of both brokers in the same period |
| copied after s | from the launch until all small topics are on the target |
| x ... | how many times better Mirror Pipeline is than that side: rates are divided one way, times and costs the other; a value below 1 means worse |
"""  # noqa: E501 - rows of a table cannot be broken

HOW = """
## How it is measured

- **Rounds.** Sides alternate within a round, and each round starts with a different side. Every round has separate target topics, cluster
  aliases and a separate buffer, all removed afterwards; written pages are flushed before the next round. Source topics are filled once
  for all sides.
- **Processes.** Both mirrors run as services (`mirror run`, not `--once`) and are stopped when everything is copied. Mirrors always start
  cold, which shows in `start s` and in the difference between `MB/s` and `warm`.
- **Validity.** A round counts only if every target partition holds exactly as many records as its source, the log shows no error and the
  process ended cleanly. Failed rounds stay in the JSON with their reason. With `--verify` each copy is also compared record by record.
- **Brokers.** One per cluster, 1 GB of heap, the JVM's server compiler as in production (embedded clusters otherwise use the quick one).
  Two unmeasured copies of 1.2 GB by each of two sides run first to warm up the brokers.
- **Sampling.** The target's end offsets are requested a few times a second over one connection, and CPU times are read at the same
  moments. The JSON has the cost of this as `watch_cpu_seconds`; it is about the same for every side and not included in any.
- **Memory.** Most of the machine's free memory is written once and released before the first round. In a virtual machine the first use of
  a page also causes a page fault on the host, which would slow down whichever copy runs first. Before the copies of a workload
  `limit` makes one that does not count, after its source was filled. `--no-touch` skips both.
- **Records.** Records are unique; each value contains its text twice, so that codecs can compress it. The table shows the size of the
  source's log and of the values. Batch sizes are those of the source; each side writes batches of other sizes.
- **The limit.** `limit` is one Python process with the wire client of Mirror Pipeline: one thread fetches over two connections, another
  produces over one with five requests in flight. It merges small uncompressed batches as the mirror does and passes all others on
  unchanged, without checksums, producer ids, buffer or ledger. It cannot recover from any error. Its copies are checked like all others.
- **Large copies.** MirrorMaker 2's copies of the workloads named `large` are stopped 60 s after their first record; its rate is that of
  the data that arrived. `Mirror Pipeline, in process` has an `engine.inline_bytes` that no micro-batch exceeds: Spark never starts.
- **Short and long copies.** Java compiles MirrorMaker 2 while it makes the short copies; in the large ones that is done after some seconds.
  It compresses records anew, in batches of 256 KiB where it is tuned, which costs the target's broker less than the source's small batches.
  Mirror Pipeline passes compressed batches on as they are, so with brokers on the same cores MirrorMaker 2 is as fast or faster in
  `1kb-lz4-large`, at twice the CPU time of its own.
- **Shared cores.** Brokers and mirror share the cores. A side that uses less CPU leaves more to the brokers, as in a small installation;
  for a large installation compare the figures per CPU-second.
- **Latency.** Both mirrors run continuously, one after the other. The topic is created anew for each, and the producer starts when the
  mirror has copied a first record to the target.
- **Idle.** The topics are copied first; the observation starts 15 s later.
"""
