"""The prose of docs/benchmarks.md; figures are put between by ``benchmarks.page``."""

HEAD = """
# Benchmarks: beside MirrorMaker 2

<!-- Made by `python -m benchmarks.page` from benchmarks/results/*.json; change the results or the generator, not this page. -->

The same topics are copied between the same two embedded clusters by Mirror Pipeline and by Kafka's own MirrorMaker 2, in turn, on one
machine. MirrorMaker 2 runs twice: as it comes, and tuned (every setting with its reason is [below](#mirrormaker-2s-settings)). Mirror
Pipeline runs with the settings a new user gets, and stages every byte on disk, flushed, before it is sent; MirrorMaker 2 has no buffer.

```
make bench                                  # everything, about 40 minutes on 2 cores
make bench BENCH=--quick                    # four workloads, smaller, under 6 minutes
make bench BENCH="--only 1kb,latency"       # some; --scale, --rounds, --sides, --resume: see --help
sudo .venv/bin/python -m benchmarks.wan     # over an emulated long link; needs root, gcc, iproute2
.venv/bin/python -m benchmarks.memory_peak  # the most memory a copy takes; --round-trip-ms 200: over such a link
.venv/bin/python -m benchmarks.quota_rate   # copy, verify and lag under client quotas, against what the quotas allow
```
A run prints a table and leaves every round, medians and ratios in `build/bench/*.json`, charts beside it.
`python -m benchmarks.page build/bench/versus.json` makes this page of a full run.
"""

NOT_YET = """
## Results

**Not measured yet.** No full run has been taken over into this page.
"""

WAN_HEAD = """
## A long link

Source broker at one end, target broker and mirror at the other, `benchmarks/wan/link.c` between them: fixed delay, fixed rate with a
drop-tail queue, random loss in each direction. Brokers keep Kafka's own socket settings (100 KiB buffers), which is what limits a single
connection on such a link. Both ends use the congestion control that the link's title names. A copy that takes too long is ended some
seconds after its first record; its rate is that of what arrived. The emulated link takes its share of the same cores. MirrorMaker 2 tuned
has one task for each of the 12 partitions here. As it comes its one consumer asks for up to 1 MiB of each of them at once: on one
connection of this link such an answer takes about 30 s, its `request.timeout.ms`, and one that takes longer is thrown away and asked for
again, without an end (its log tells of a request timeout every 30 seconds).
"""

WAN_NOT_YET = """
**Not measured yet.**
"""

MEANING = """
## What each figure means

| figure | meaning |
|---|---|
| MB/s, k rec/s | steady state: from the first sample that shows records on the target to the one that shows the last; what the first one shows is not counted. MB are bytes of the source's log as it lies on disk, compressed where the source is, for every side |
| warm | the same for the second half of the records alone, when just-in-time compilers have done their work |
| MB/CPU-s, k rec/CPU-s | for each CPU-second (user and system) of all of the mirror's processes, Java, Python and ended children included, from the moment the source begins to send data until half a second after the last record arrived: reading ahead and book-keeping are in it, start-up is not |
| brokers CPU-s | CPU-seconds of both brokers in the same time; each alone is in the JSON |
| start s | from the launch of the process to the first record on the target |
| total s | from the launch to the last record, so start-up included |
| RSS MB | largest sum of resident memory of all the mirror's processes at one moment; pages that processes share are counted in each. Peaks of each process are in the JSON |
| process MB | peak of the largest process: the largest Python for Mirror Pipeline (its Java only schedules), the one Java for MirrorMaker |
| p50, p90, p99, max ms | age of records when a consumer of the target gets them: the producer writes the time into each record, both are processes of their own on the same clock; the first 10 seconds are left out |
| % of a core | CPU of the mirror's processes while latency or idleness is measured |
| idle CPU-s | the same in seconds, over the whole watch; brokers CPU-s are those of both brokers in the same time |
| copied after s | from the launch until all the small topics are on the target |
| x ... | how many times better Mirror Pipeline is than that side: rates divided one way, times and costs the other; below 1 it is worse |
"""  # noqa: E501 - rows of a table cannot be broken

HOW = """
## How it is measured

- Sides alternate within a round, and each round begins with another side. Every round has target topics, cluster aliases and a buffer
  of its own, all removed afterwards; written pages are flushed before the next one begins. Source topics are filled once for all sides.
- Both mirrors run as a service does (`mirror run`, not `--once`) and are ended once everything is there.
- A round counts only when every target partition holds exactly as many records as its source, the log shows no error and the process ended
  cleanly. Failed rounds stay in the JSON with their reason. With `--verify` each copy is also compared record by record.
- Brokers: one for each cluster, 1 GB of heap, the JVM's server compiler as in production (embedded clusters otherwise use the quick
  one). Two unmeasured copies of 1.2 GB by each of two sides come first, so that brokers are warm. Mirrors always start
  cold: that is what `start s` and the difference between `MB/s` and `warm` show.
- The target's end offsets are asked a few times a second over one connection, CPU accounts are read at the same moments. What that costs
  itself stands in the JSON as `watch_cpu_seconds`; it is much the same for every side, and part of none.
- Most of the machine's free memory is written to once and given back first. In a virtual machine the first use of a page is also a fault
  of the host, which would slow down whichever copy comes first; `--no-touch` leaves it out.
- Records are unique; the text of each value stands in it twice, so that every codec has something to do. The table gives the source's
  log size and that of the values. Sizes of batches are those of the source; each side writes its own.
- Brokers and mirror share the cores. A side that uses less CPU leaves more to the brokers, which is also so in a small installation; on a
  large one compare the figures for each CPU-second.
- Latency: both mirrors run continuously, one after the other. The topic is made anew for each, and the producer starts once the mirror
  has brought a first record to the target.
- Idle: the topics are copied first; 15 s later the watch begins.
"""
