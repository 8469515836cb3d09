"""mirror.yaml that is right becomes facts; mirror.yaml that is wrong becomes one line for each mistake."""

from __future__ import annotations

import dataclasses
import pickle
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline.config import (
    BufferConfig,
    ClusterSettings,
    Config,
    EngineConfig,
    FrozenMap,
    GroupSelection,
    MirrorConfig,
    Security,
    TopicSelection,
    load_config,
    models,
    settings,
)
from mirror_pipeline.config.settings import state_folder
from mirror_pipeline.config.starts import StartMap, StartOffsets
from mirror_pipeline.errors import ConfigError, UsageError

FACES = r"""
clusters:
  east: {bootstrap_servers: "127.0.0.1:19092"}
  west: {bootstrap_servers: "127.0.0.1:29092,127.0.0.1:29093"}
mirrors:
  - name: east-to-west
    source: east
    target: west
    topics: {include: ["orders", "payments\\..*"], exclude: [".*\\.internal"]}
    naming: prefix
    offsets: translated
    start: earliest
    on_loss: halt
    lanes: 1
    groups: {include: [".*"], exclude: []}
buffer: {uri: ./mirror_buffer, retention: 24h, max_bytes: 50GB}
"""
GOOD = """\
clusters:
  east: {bootstrap_servers: "h:1"}
  west: {bootstrap_servers: "h:2"}
mirrors:
  - name: m
    source: east
    target: west
    topics: {include: ["a"]}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "mirror.yaml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def problems(folder: Path, text: str) -> list[str]:
    """What is wrong, without the path in front."""
    path = write(folder, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.exit_code == 2
    return [line.removeprefix(f"{path}:") for line in caught.value.message.splitlines()]


def changed(old: str, new: str, text: str = GOOD) -> str:
    assert old in text
    return text.replace(old, new)


def test_the_documented_file_loads(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, FACES))
    assert config.clusters["west"] == ClusterSettings("west", ("127.0.0.1:29092", "127.0.0.1:29093"), Security(), FrozenMap())
    (mirror,) = config.mirrors
    assert mirror.topics == TopicSelection(("orders", r"payments\..*"), (r".*\.internal",))
    assert (mirror.naming, mirror.offsets, mirror.start, mirror.on_loss, mirror.lanes) == ("prefix", "translated", "earliest", "halt", 1)
    assert config.buffer.uri == str(tmp_path / "mirror_buffer")
    assert (config.buffer.retention, config.buffer.max_bytes) == (86_400, 50_000_000_000)
    assert mirror.engine == EngineConfig()
    assert config.path == tmp_path / "mirror.yaml"


def test_groups_are_selected_by_regexes(tmp_path: Path) -> None:
    groups = load_config(write(tmp_path, FACES)).mirrors[0].groups
    assert groups == GroupSelection((".*",), (), 10.0)


def test_defaults_of_models_and_facts_agree(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD + "    groups: {}\n"))
    mirror = MirrorConfig("m", "east", "west", TopicSelection(("a",)), groups=GroupSelection())
    assert config == Config(config.clusters, [mirror], BufferConfig(config.buffer.uri), config.path)
    assert config.clusters["east"] == ClusterSettings("east", ("h:1",))


@pytest.mark.parametrize(
    ("section", "facts"),
    [
        (models.SecurityModel, Security), (models.TopicsModel, TopicSelection), (models.TopicConfigsModel, settings.TopicConfigs),
        (models.TopicAclsModel, settings.TopicAcls), (models.GroupsModel, GroupSelection), (models.EngineModel, EngineConfig),
        (models.MirrorModel, MirrorConfig), (models.BufferModel, BufferConfig), (models.NotifyModel, settings.NotifyConfig),
        (models.PageModel, settings.PageConfig), (models.PageUserModel, settings.PageUser),
    ],
)  # fmt: skip
def test_every_key_becomes_a_fact(section: type[models.Section], facts: type[Any]) -> None:
    """What is no fact would be read and have no effect."""
    assert set(section.model_fields) == {field.name for field in dataclasses.fields(facts)}


def test_everything_can_be_pickled_and_hashed(tmp_path: Path) -> None:
    text = FACES + "engine: {spark: {spark.ui.enabled: false}}\n"
    config = load_config(write(tmp_path, text.replace('"127.0.0.1:19092"', '"127.0.0.1:19092", client: {socket.keepalive.enable: true}')))
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301
    assert dict(config.clusters["east"].client) == {"socket.keepalive.enable": "true"}
    assert dict(config.mirrors[0].engine.spark) == {"spark.ui.enabled": "false"}
    assert len({*config.clusters.values(), *config.mirrors}) == 3


def test_engine_keys_of_a_mirror_override_single_keys(tmp_path: Path) -> None:
    text = GOOD + "    engine: {tasks: 3}\nengine: {tasks: 8, micro_batch_bytes: 1MiB}\n"
    engine = load_config(write(tmp_path, text)).mirrors[0].engine
    assert (engine.tasks, engine.micro_batch_bytes) == (3, 1_048_576)


def test_micro_batch_fits_a_small_buffer(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD + "buffer: {max_bytes: 40MB}\n"))
    assert config.mirrors[0].engine.micro_batch_bytes == 10_000_000
    (line,) = problems(tmp_path, GOOD + "buffer: {max_bytes: 40MB}\nengine: {micro_batch_bytes: 20MB}\n")
    assert line.startswith("10: engine.micro_batch_bytes: the buffer must hold 4 of them; at most 10MB")


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ("latest", "latest"),
        ("2026-03-01T00:00:00Z", datetime(2026, 3, 1, tzinfo=UTC)),
        ('"2026-03-01T02:00:00+02:00"', datetime(2026, 3, 1, tzinfo=UTC)),
        ("{a: latest}", StartMap((("a", "latest"),))),
        (
            r"{'a\..*': 2026-03-01T00:00:00Z, b: {1: 7, 0: 4711}, otherwise: latest}",
            StartMap((("a\\..*", datetime(2026, 3, 1, tzinfo=UTC)), ("b", StartOffsets(((0, 4711), (1, 7))))), "latest"),
        ),
    ],
)
def test_start(tmp_path: Path, written: str, start: object) -> None:
    assert load_config(write(tmp_path, GOOD + f"    start: {written}\n")).mirrors[0].start == start


def test_environment_in_addresses_and_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAST", "e1:9092,e2:9092")
    monkeypatch.setenv("PLACE", "/data")
    text = changed('"h:1"', '"${env:EAST}"') + "buffer: {uri: '${env:PLACE}/buffer'}\n"
    config = load_config(write(tmp_path, text))
    assert config.clusters["east"].bootstrap_servers == ("e1:9092", "e2:9092")
    assert config.buffer.uri == "/data/buffer"


def test_unset_environment_in_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EAST", raising=False)
    (line,) = problems(tmp_path, changed('"h:1"', '["${env:EAST}"]'))
    assert line.startswith("2: clusters.east.bootstrap_servers[0]: environment variable EAST is not set")


def test_norway_and_numbers_stay_what_they_are(tmp_path: Path) -> None:
    text = GOOD.replace("east", "no").replace("west", "on")
    assert set(load_config(write(tmp_path, text)).clusters) == {"no", "on"}


WRONG = [
    (
        'bootstrap_servers: "h:1"',
        'bootstrap_server: "h:1"',
        '2: clusters.east.bootstrap_server: unknown key, did you mean "bootstrap_servers"?',
    ),
    ("    source: east\n", "    source: eats\n", '6: mirrors[0].source: no cluster "eats", did you mean "east"?'),
    ("    target: west\n", "    target: east\n", '7: mirrors[0].target: source and target are both "east"; a mirror needs two clusters'),
    ("    target: west\n", "", "5: mirrors[0].target: is missing"),
    ('"h:1"', '"h"', '2: clusters.east.bootstrap_servers: "h" is not host:port, e.g. "broker1:9092"'),
    ('"h:1"', '"h:70000"', '2: clusters.east.bootstrap_servers: "h:70000" is not host:port, e.g. "broker1:9092"'),
    ('["a"]', '["a("]', '8: mirrors[0].topics.include[0]: regex "a(" does not compile: missing ), unterminated subpattern at position 1'),
    (
        '["a"]',
        '["*"]',
        '8: mirrors[0].topics.include[0]: regex "*" does not compile: nothing to repeat at position 0; for any text write ".*"',
    ),
    ('["a"]', "[]", "8: mirrors[0].topics.include: must have at least one entry"),
    ('["a"]', "a", '8: mirrors[0].topics.include: must be a list; write ["a"]'),
    ('["a"]', "[17]", "8: mirrors[0].topics.include[0]: must be text; put it in quotes"),
    (
        '["a"]',
        '["a,b"]',
        '8: mirrors[0].topics.include[0]: regex "a,b" holds a comma, which no topic name has; write one list item for each regex',
    ),
    (
        "name: m",
        "name: a b",
        "5: mirrors[0].name: a mirror name is made of letters, digits, _ and -, at most 63; put it in quotes if it is a number",
    ),
]
ADDED = [
    ("naming: '{source}'", '"{source}" lacks {topic}: all topics would get one name; write e.g. "{source}.{topic}"'),
    ("naming: 'a b {topic}'", '"a b {topic}" makes illegal topic names: it holds " "; Kafka allows letters, digits, ".", "_" and "-"'),
    ("naming: '{cluster}.{topic}'", '"{cluster}.{topic}" does not know {cluster}; a template may hold {source} and {topic}'),
    ("naming: prefx", '"prefx" is neither "prefix" nor "identity", and as a template it lacks {topic}, e.g. "{source}.{topic}"'),
    ("naming: {map: {}}", "map must be a mapping of source topic to target topic, e.g. {orders: eu.orders}"),
    ("naming: {map: {a: x.y, b: x_y}}", 'map: a and b would both become "x_y" (. and _ are the same in metric names)'),
    ("naming: {map: {a: 'b c'}}", 'map: topic name "b c" holds " "; Kafka allows letters, digits, ".", "_" and "-"'),
    ("naming: {map: {a: __b}}", 'map: topic name "__b" is the name of an internal topic'),
    (
        "naming: {map: {a: b}, else: prefix}",
        "has the keys map and otherwise, or match, replace and otherwise (otherwise: prefix where it is left out)",
    ),
    (
        "naming: {map: {a: b}, otherwise: 'x'}",
        '"x" is neither "prefix" nor "identity", and as a template it lacks {topic}, e.g. "{source}.{topic}"',
    ),
    ("naming: {match: 'eu(', replace: x}", 'regex "eu(" does not compile: missing ), unterminated subpattern at position 2'),
    (
        r"naming: {match: 'eu.(.*)', replace: '\1'}",
        r'"eu.(.*)" holds . outside a group: write "\." for a dot, so that target names lead back to source names',
    ),
    (
        r"naming: {match: '[a-z]+-(.*)', replace: '\1'}",
        '"[a-z]+-(.*)" holds [ outside a group: write what varies as a group, so that target names lead back to source names',
    ),
    (r"naming: {match: '(.*)-(.*)', replace: '\1'}", r'"\1" does not use \2: topics that differ in that group would get one name'),
    (r"naming: {match: '(.*)', replace: '\1\2'}", r'"\1\2" uses \2, "(.*)" has 1 group'),
    (r"naming: {match: '(.*)', replace: '$1'}", r'"$1" does not use \1: topics that differ in that group would get one name'),
    (r"naming: {match: '(.*)', replace: 'a \1'}", r'"a \1" holds " "; Kafka allows letters, digits, ".", "_" and "-"'),
    (r"naming: {match: '(.*)', replace: '\g<1>'}", r'"\g<1>" holds \g; it may hold \1 to \9 and characters of topic names'),
    ("naming: {match: 'eu', replace: 'x'}", '"eu" has no group: it names one topic; write it as map: {eu: x}'),
    (
        "naming: {match: '(?:a|b)(.*)', replace: 'x'}",
        '"(?:a|b)(.*)": write groups as (...), without "(?" at their start and without groups inside',
    ),
    ("start: {otherwise: latest}", "must be earliest, latest, a time, or a mapping of topic to one of these, e.g. {orders: latest}"),
    ("start: {'a(': latest}", 'regex "a(" does not compile: missing ), unterminated subpattern at position 1'),
    ("start: {a: {}}", '"a" names no partition, e.g. {0: 4711}'),
    ("start: {a: {0: -1}}", '"a": {0: -1} is not partition: offset, two numbers from 0 on, e.g. {0: 4711}'),
    ("start: {a: {first: 1}}", '"a": {first: 1} is not partition: offset, two numbers from 0 on, e.g. {0: 4711}'),
    ("offsets: exactly", '"exactly" is not one of translated, exact; did you mean "exact"?'),
    (
        "start: 2026-03-01T00:00:00",
        'time "2026-03-01T00:00:00" has no zone; write 2026-03-01T00:00:00Z for UTC or 2026-03-01T00:00:00+02:00',
    ),
    ("start: soon", '"soon" is not a time; write it as 2026-03-01T00:00:00Z'),
    ("on_loss: gap", '"gap" is not one of halt, record_gap'),
    ("lanes: 0", "must be at least 1"),
    ("lanes: two", "must be a whole number"),
    ("topics: {include: [b]}", "duplicate key; first defined in line 8"),
]


@pytest.mark.parametrize(("old", "new", "line"), WRONG)
def test_a_wrong_value_is_one_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    assert problems(tmp_path, changed(old, new)) == [line]


@pytest.mark.parametrize(("added", "message"), ADDED)
def test_a_wrong_key_of_a_mirror_is_one_line(tmp_path: Path, added: str, message: str) -> None:
    assert problems(tmp_path, GOOD + f"    {added}\n") == [f"9: mirrors[0].{added.split(':')[0]}: {message}"]


@pytest.mark.parametrize(
    ("added", "line"),
    [
        ("buffer: {retention: 24h, archive: 12h}", "9: buffer.archive: must be longer than buffer.retention"),
        ("buffer: {archive: 90}", '9: buffer.archive: not a duration; write "24h", "30m", "90s" or "7d"; did you mean "90s"?'),
        ("buffer: {retention: 24}", '9: buffer.retention: not a duration; write "24h", "30m", "90s" or "7d"; did you mean "24s"?'),
        ("buffer: {max_bytes: 50XB}", '9: buffer.max_bytes: not a size; write "256MB", "50GB", "512KiB" or a number of bytes'),
        ("buffer: {uri: 'gs://b/c'}", "9: buffer.uri: gs:// is not supported yet; name a local or mounted folder, or s3://bucket/prefix"),
        ("buffer: {uri: 's3://b/c d'}", "9: buffer.uri: write s3://bucket/prefix, in letters, digits, . _ - and /"),
        ("bufer: {}", '9: bufer: unknown key, did you mean "buffer"?'),
        ("engine: {spark_master: '${env:X}'}", "9: engine.spark_master: ${...} is not replaced here"),
        (
            "engine: {spark: {spark.hadoop.fs.s3a.secret.key: abc}}",
            "9: engine.spark.spark.hadoop.fs.s3a.secret.key: a secret must not be written here",
        ),
        ("engine: [1]", "9: engine: must be a block of keys"),
        ("buffer: {uri: [1}", "9: not valid YAML: "),
        ("buffer:\n\t uri: x", "10: not valid YAML: a character that cannot start a value"),
    ],
)
def test_the_other_blocks(tmp_path: Path, added: str, line: str) -> None:
    (found,) = problems(tmp_path, GOOD + added + "\n")
    assert found.startswith(line)


def test_all_mistakes_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    text = (
        changed("source: east", "source: eats", changed('bootstrap_servers: "h:1"', 'bootstrap_server: "h:1"')) + "    lanes: 0\nbufer: 1\n"
    )
    assert [line.split(":")[0] for line in problems(tmp_path, text)] == ["2", "6", "9", "10"]


def test_two_mirrors_need_two_names(tmp_path: Path) -> None:
    more = "  - {name: %s, source: west, target: east, topics: {include: [b]}}\n"
    (line,) = problems(tmp_path, GOOD + more % "m")
    assert line.startswith('9: mirrors[1].name: "m" is the same name as ')
    (line,) = problems(tmp_path, changed("name: m", "name: a-b") + more % "a_b")
    assert line.startswith('9: mirrors[1].name: "a_b" is too similar to "a-b" of ')


def test_missing_empty_and_odd_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mirror.yaml: no such file \(`mirror init` writes one"):
        load_config(tmp_path / "mirror.yaml")
    with pytest.raises(ConfigError, match="the file is empty"):
        load_config(write(tmp_path, "# nothing\n"))
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)
    (tmp_path / "mirror.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "mirror.yaml")
    assert problems(tmp_path, "- a\n") == ["1: must be a block of keys"]


def test_mirror_by_name(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, FACES))
    assert config.mirror("east-to-west") is config.mirrors[0]
    with pytest.raises(UsageError, match='no mirror "east-to-wets" .*did you mean "east-to-west"'):
        config.mirror("east-to-wets")


def test_anchors_and_merges_keep_their_lines(tmp_path: Path) -> None:
    second = "  - &second\n    name: n\n    source: west\n    target: east\n    topics: {include: [b]}\n"
    text = GOOD + second + "  - <<: *second\n    name: o\n    lanes: -1\n"
    assert problems(tmp_path, text) == ["16: mirrors[2].lanes: must be at least 1"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("groups: {include: [g]}", "a group's offset says nothing about the other writers' records"),
        ("offsets: exact", "so offsets cannot be exact"),
        ("reverse_of: back", "a mirror and its reverse need target topics of their own"),
    ],
)
def test_what_cannot_be_had_of_topics_with_several_writers(tmp_path: Path, line: str, says: str) -> None:
    back = "  - {name: back, source: west, target: east, topics: {include: [a]}}\n"
    text = f"{GOOD}    writers: shared\n    {line}\n{back}"
    assert [each for each in problems(tmp_path, text) if "mirrors[0].writers" in each and says in each]


def test_writers_are_sole_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    assert not load_config(write(tmp_path, GOOD)).mirrors[0].shared
    assert load_config(write(tmp_path, f"{GOOD}    writers: shared\n")).mirrors[0].shared
    assert any("writers" in each for each in problems(tmp_path, f"{GOOD}    writers: many\n"))
    named = f"{GOOD}    writers: shared\n  - {{name: back, source: west, target: east, topics: {{include: [a]}}, reverse_of: m}}\n"
    assert any("leave out reverse_of" in each for each in problems(tmp_path, named))


def test_copies_are_only_deleted_where_the_mirror_alone_writes_and_may_change_them(tmp_path: Path) -> None:
    text = GOOD.replace("topics: {", "topics: {on_source_delete: delete, ")
    assert load_config(write(tmp_path, text)).mirrors[0].topics.on_source_delete == "delete"
    assert any("must not be deleted" in each for each in problems(tmp_path, text + "    writers: shared\n"))
    unmanaged = text.replace("on_source_delete: delete, ", "on_source_delete: delete, manage: false, ")
    assert any("mirrors[0].topics.on_source_delete" in each for each in problems(tmp_path, unmanaged))


def test_acls_are_not_kept_in_step_on_topics_with_several_writers(tmp_path: Path) -> None:
    text = GOOD.replace("topics: {", "topics: {acls: {sync: true}, ") + "    writers: shared\n"
    assert any("ACLs of several sources" in each for each in problems(tmp_path, text))


def test_state_is_kept_beside_the_file_or_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIRROR_STATE", raising=False)
    assert state_folder(tmp_path / "mirror.yaml") == tmp_path / ".mirror"
    monkeypatch.setenv("MIRROR_STATE", str(tmp_path / "state"))
    assert state_folder(Path("/etc/mirror/mirror.yaml")) == tmp_path / "state"


@pytest.mark.parametrize(("forth", "back"), [("exact", "translated"), ("translated", "exact")])
def test_a_mirror_and_its_reverse_have_exact_offsets_both_or_neither(tmp_path: Path, forth: str, back: str) -> None:
    reverse = "  - {{name: back, source: west, target: east, topics: {{include: [a]}}, reverse_of: m, offsets: {}}}\n"
    says = "both have offsets: exact, or neither"
    assert [each for each in problems(tmp_path, f"{GOOD}    offsets: {forth}\n{reverse.format(back)}") if says in each]
    assert load_config(write(tmp_path, f"{GOOD}    offsets: {forth}\n{reverse.format(forth)}")).mirrors[1].offsets == forth


def test_starts_of_logs_follow_only_where_offsets_are_the_same(tmp_path: Path) -> None:
    text = GOOD.replace("""{include: ["a"]}""", "{include: [a], follow_trim: true}")
    assert text != GOOD
    assert any("follow_trim: needs offsets: exact" in each for each in problems(tmp_path, text))
    assert load_config(write(tmp_path, f"{text}    offsets: exact\n")).mirrors[0].topics.follow_trim


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ("[east]", "mirrors[0].sources[0]: \"east\" is the mirror's source or target"),
        ("[west]", "mirrors[0].sources[0]: \"west\" is the mirror's source or target"),
        ("[north, north]", 'mirrors[0].sources[1]: "north" is there twice'),
        ("[nroth]", 'mirrors[0].sources[0]: no cluster "nroth", did you mean "north"'),
    ],
)
def test_copies_of_the_source_are_other_clusters_each_once(tmp_path: Path, sources: str, says: str) -> None:
    text = GOOD.replace("mirrors:", "  north: {bootstrap_servers: \"n:9092\"}\nmirrors:", 1) + "    offsets: exact\n"
    assert load_config(write(tmp_path, f"{text}    sources: [north]\n")).mirrors[0].sources == ("north",)
    assert any(says in each for each in problems(tmp_path, f"{text}    sources: {sources}\n"))


def test_copies_of_the_source_need_the_same_offsets(tmp_path: Path) -> None:
    text = GOOD.replace("mirrors:", "  north: {bootstrap_servers: \"n:9092\"}\nmirrors:", 1) + "    sources: [north]\n"
    assert any("mirrors[0].sources: needs offsets: exact" in each for each in problems(tmp_path, text))
