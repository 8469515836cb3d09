"""A property file of MirrorMaker 2 becomes a mirror.yaml that loads, and every key has an outcome."""

from __future__ import annotations

import ssl
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline.config import Config, GroupSelection, load_config
from mirror_pipeline.config.mm2.convert import convert
from mirror_pipeline.config.mm2.import_file import import_mm2
from mirror_pipeline.config.mm2.key_table import CLUSTER_RULES, FLOW_RULES, IDLE_RULES
from mirror_pipeline.config.mm2.mirror_block import GROUPS_LEFT_OUT, TOPICS_LEFT_OUT
from mirror_pipeline.errors import ConfigError, UsageError
from mirror_pipeline.reports import ImportReport
from mirror_pipeline.topics.select import select

BASE = """\
clusters = A, B
A.bootstrap.servers = a1:9092, a2:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
"""


def imported(folder: Path, text: str, **options: Any) -> tuple[ImportReport, Config]:
    """Import a text and load what was written."""
    report = import_mm2(write(folder, text), folder / "mirror.yaml", **options)
    assert report.path == str(folder / "mirror.yaml"), [key for key in report.keys if key.outcome == "refused"]
    return report, load_config(report.path)


def write(folder: Path, text: str) -> Path:
    path = folder / "mm2.properties"
    path.write_text(text, encoding="latin-1")
    return path


def problems(folder: Path, text: str) -> list[str]:
    """The problems without the path in front; nothing may be written."""
    path = write(folder, text)
    with pytest.raises(ConfigError) as caught:
        import_mm2(path, folder / "mirror.yaml")
    assert caught.value.exit_code == 2
    assert sorted(found.name for found in folder.iterdir() if found.suffix != ".pem") == ["mm2.properties"]
    return [line.removeprefix(f"{path}:") for line in caught.value.message.splitlines()]


def refused(folder: Path, text: str) -> dict[str, str]:
    """Refused keys with the reason; nothing may be written."""
    report = import_mm2(write(folder, text), folder / "mirror.yaml")
    assert report.path is None and not (folder / "mirror.yaml").exists()
    return {f"{key.line}: {key.key}": key.why for key in report.refused}


def outcomes(report: ImportReport) -> dict[str, str]:
    return {key.key: key.outcome for key in report.keys if key.line is not None}


def test_the_smallest_file_brings_mirrormakers_defaults(tmp_path: Path) -> None:
    report, config = imported(tmp_path, BASE)
    assert report.mirrors == ("A-to-B",)
    mirror = config.mirror("A-to-B")
    assert config.clusters["A"].bootstrap_servers == ("a1:9092", "a2:9092")
    assert (mirror.source, mirror.target, mirror.naming, mirror.start, mirror.groups) == ("A", "B", "prefix", "earliest", None)
    assert mirror.topics.include == (".*",)
    assert set(TOPICS_LEFT_OUT) <= set(mirror.topics.exclude)
    assert set(outcomes(report).values()) == {"carried"}
    defaults = [key.key for key in report.keys if key.outcome == "default"]
    assert "topics.exclude" in defaults and "sync.topic.acls.enabled" in defaults and "replication.factor" in defaults


def test_topics_are_selected_as_mirrormaker_selects_them(tmp_path: Path) -> None:
    """Excludes win, its own topics and copies from the target stay out, whatever `topics` says."""
    _, config = imported(tmp_path, BASE + "topics = orders, pay.*, B\\\\..*, .*internal, heartbeats\nA->B.topics.exclude = payroll\n")
    topics = config.mirror("A-to-B").topics
    names = [
        "orders", "orders2", "pay", "payments", "payroll", "B.orders", "x.B.orders", "pay-internal", "pay.internal", "payinternal",
        "heartbeats", "A.heartbeats", "pay.heartbeats", "__consumer_offsets", ".pay",
    ]  # fmt: skip
    assert select(names, topics.include, topics.exclude)[0] == ["orders", "pay", "pay.heartbeats", "payinternal", "payments"]


def test_a_flows_own_keys_win_over_those_for_all_flows(tmp_path: Path) -> None:
    text = BASE + "B->A.enabled=true\ntopics=all\nA->B.topics=ours\nreplication.factor=3\nB->A.replication.factor=-1\n"
    report, config = imported(tmp_path, text)
    there, back = config.mirror("A-to-B"), config.mirror("B-to-A")
    assert (there.topics.include, back.topics.include) == (("ours",), ("all",))
    assert (there.topics.replication_factor, back.topics.replication_factor) == (3, None)
    assert outcomes(report)["B->A.replication.factor"] == "changed"


def test_what_every_flow_has_itself_is_not_needed_at_the_top(tmp_path: Path) -> None:
    report, _ = imported(tmp_path, BASE + "topics=all\nA->B.topics=ours\n")
    assert outcomes(report)["topics"] == "not_needed"


def test_groups_are_carried_only_where_mirrormaker_wrote_them(tmp_path: Path) -> None:
    on, config = imported(tmp_path, BASE + "sync.group.offsets.enabled=true\nsync.group.offsets.interval.seconds=5\ngroups=g.*, h\n")
    assert config.mirror("A-to-B").groups == GroupSelection(("g.*", "h"), GROUPS_LEFT_OUT, 5.0)
    off, config = imported(tmp_path, BASE + "groups=g.*\n", force=True)
    assert config.mirror("A-to-B").groups is None
    assert (outcomes(on)["groups"], outcomes(off)["groups"]) == ("carried", "not_needed")


def test_settings_of_topics_follow(tmp_path: Path) -> None:
    text = BASE + "sync.topic.configs.enabled=true\nsync.topic.configs.interval.seconds=7200\nconfig.properties.blacklist=a, b\\\\..*\n"
    report, config = imported(tmp_path, text + "A->B.use.defaults.from=source\nuse.defaults.from=target\n")
    configs = config.mirror("A-to-B").topics.configs
    assert (configs.sync, configs.interval, configs.exclude, configs.defaults_from) == (True, 3600.0, ("a", "b\\..*"), "source")
    found = outcomes(report)
    assert found["sync.topic.configs.interval.seconds"] == found["config.properties.blacklist"] == "changed"
    assert found["use.defaults.from"] == "not_needed"


@pytest.mark.parametrize(
    ("line", "sync"), [("", False), ("sync.topic.acls.enabled=false\n", False), ("sync.topic.acls.enabled=true\n", True)]
)
def test_acls_are_carried_where_the_file_says_so(tmp_path: Path, line: str, sync: bool) -> None:
    assert imported(tmp_path, BASE + line)[1].mirror("A-to-B").topics.acls.sync is sync


@pytest.mark.parametrize(
    ("extra", "naming"),
    [
        ("replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy", "identity"),
        ("replication.policy.class=io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy", "identity"),
        ("replication.policy.class=org.apache.kafka.connect.mirror.DefaultReplicationPolicy", "prefix"),
        ("replication.policy.separator=_", "{source}_{topic}"),
    ],
)
def test_names_of_target_topics(tmp_path: Path, extra: str, naming: str) -> None:
    assert imported(tmp_path, BASE + extra + "\n")[1].mirror("A-to-B").naming == naming


def test_an_alias_that_mirror_yaml_cannot_have_keeps_its_prefix(tmp_path: Path) -> None:
    text = "clusters=us.east,us\nus.east.bootstrap.servers=h:1\nus.bootstrap.servers=h:2\nus.east->us.enabled=true\n"
    _, config = imported(tmp_path, text)
    mirror = config.mirror("us-east-to-us")
    assert (mirror.source, mirror.target, mirror.naming) == ("us-east", "us", "us.east.{topic}")


@pytest.mark.parametrize(
    "key", ["A.consumer.auto.offset.reset", "A->B.consumer.auto.offset.reset", "A->B.source.consumer.auto.offset.reset"]
)
def test_the_start(tmp_path: Path, key: str) -> None:
    assert imported(tmp_path, BASE + f"{key}=latest\n")[1].mirror("A-to-B").start == "latest"


def test_secrets_become_references_and_stay_out_of_file_and_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = tmp_path / "client.pem"
    pem.write_text("x")
    text = BASE + "\n".join(
        [
            "security.protocol=SASL_SSL", "sasl.mechanism=SCRAM-SHA-512",
            'A.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="mm" password="s3cret=\\\\"x";',
            "B.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username='mm2' password='${env:B_PW}';",
            "config.providers=env", "config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider",
            "B.ssl.keystore.type=PEM", "B.ssl.keystore.location=client.pem", "B.ssl.key.password=s3cret-key",
            "A.ssl.truststore.type=pem", "A.ssl.truststore.location=client.pem", "A.ssl.truststore.password=s3cret-store",
            "A.ssl.endpoint.identification.algorithm=", "A.consumer.sasl.mechanism=SCRAM-SHA-512",
        ]
    )  # fmt: skip
    report, config = imported(tmp_path, text)
    a, b = config.clusters["A"].security, config.clusters["B"].security
    assert (a.protocol, a.mechanism, a.username, str(a.password)) == ("SASL_SSL", "SCRAM-SHA-512", "mm", "${env:A_PASSWORD}")
    assert (a.ca_file, a.verify_hostname) == (str(pem), False)
    assert (b.username, str(b.password), b.cert_file, b.key_file) == ("mm2", "${env:B_PW}", str(pem), str(pem))
    assert str(b.key_password) == "${env:B_KEY_PASSWORD}" and b.verify_hostname
    assert report.secrets == {
        "A_PASSWORD": "A.sasl.jaas.config", "B_PW": "B.sasl.jaas.config", "B_KEY_PASSWORD": "B.ssl.key.password",
    }  # fmt: skip
    assert "s3cret" not in repr(report) + (tmp_path / "mirror.yaml").read_text()
    assert "refused" not in outcomes(report).values()


def test_every_known_key_has_an_outcome_and_only_unknown_ones_are_called_so(tmp_path: Path) -> None:
    """Each key of the table in the docs, at each place where MirrorMaker reads it."""
    for rule in (*CLUSTER_RULES, *FLOW_RULES, *IDLE_RULES):
        name = rule.key.replace("*", "x")
        scope = "A." if rule in CLUSTER_RULES else "A->B."
        if name in ("clusters", "enabled", "bootstrap.servers", "security.protocol", "replication.policy.separator"):
            continue
        value = "5" if name.endswith((".seconds", "factor")) else "true" if name.endswith("enabled") else "source"
        value = "earliest" if name.endswith("offset.reset") else value
        converted = convert(BASE + f"{scope}{name}={value}\n", "mm2.properties", tmp_path)
        row = next(key for key in converted.keys if key.key == scope + name)
        assert "unknown" not in row.why, row
        assert row.outcome == rule.outcome or rule.outcome in ("carried", "changed") or row.outcome == "refused", row


def test_contradictions_and_what_copies_nothing_are_named_by_line(tmp_path: Path) -> None:
    text = """\
clusters = A, B
A.bootstrap.servers = a:1
A.consumer.security.protocol = SSL
A.security.protocol = PLAINTEXT
A->B.enabled = true
A->C.enabled = true
A->B.topics = x
B->B.enabled = true
replication.factor = two
sync.topic.configs.enabled = yes
"""
    assert problems(tmp_path, text) == [
        "1: B.bootstrap.servers: is missing",
        "3: A.consumer.security.protocol: contradicts A.security.protocol in line 4; a cluster has one way to connect",
        '6: A->C.enabled: no cluster "C": clusters lists A, B',
        "8: B->B.enabled: source and target are the same cluster",
        "9: replication.factor: must be a whole number from -1 on",
        "10: sync.topic.configs.enabled: must be true or false",
    ]


def test_of_a_key_that_stands_twice_the_last_one_counts_as_in_java(tmp_path: Path) -> None:
    report, config = imported(tmp_path, BASE + "A->B.topics = x\nA->B.topics = y\nA->B.groups = g\nA->B.groups = g\n")
    assert config.mirror("A-to-B").topics.include == ("y",)
    rows = [(key.line, key.outcome, key.why) for key in report.keys if key.key == "A->B.topics"]
    assert rows == [(5, "changed", "without effect: line 6 counts, as in Java"), (6, "carried", "")]


@pytest.mark.parametrize("line", ["", "A->B.enabled = false\n", "A->B.enable = true\n"])
def test_no_enabled_flow(tmp_path: Path, line: str) -> None:
    text = "clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\n" + line
    assert problems(tmp_path, text) == ["1: clusters: no flow is enabled: nothing is copied; write A->B.enabled=true"]


def test_a_file_without_clusters(tmp_path: Path) -> None:
    assert problems(tmp_path, "topics=x\n") == ["1: clusters: is missing"]


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("name=mm\nconnector.class=org.apache.kafka.connect.mirror.MirrorSourceConnector\n", "a connector", "write clusters"),
        ('{"name": "mm", "config": {"connector.class": "MirrorSourceConnector", "topics": ".*"}}', "a connector", "write clusters"),
        ("apiVersion: kafka.strimzi.io/v1beta2\nkind: KafkaMirrorMaker2\nspec:\n  replicas: 1\n", "Strimzi", "property file"),
        ("# ours\nclusters:\n  east: {bootstrap_servers: h:1}\nmirrors:\n  - {name: m}\n", "a mirror.yaml already", "-c FILE"),
        ("bootstrap.servers=a:9092\ngroup.id=mm1\nauto.offset.reset=earliest\n", "settings of one client", "--whitelist"),
        ("zookeeper.connect=zk:2181\ngroup.id=mm1\n", "settings of one client", "--whitelist"),
        ('{"topics": ".*"}', "JSON", "connect-mirror-maker.sh"),
        ("services:\n  mm2:\n    image: x\n", "YAML", "connect-mirror-maker.sh"),
    ],
)
def test_files_of_other_kinds_are_named(tmp_path: Path, text: str, what: str, hint: str) -> None:
    """One sentence, instead of the problems that such a file has as a property file."""
    with pytest.raises(ConfigError) as caught:
        import_mm2(write(tmp_path, text), tmp_path / "mirror.yaml")
    assert what in caught.value.message and "\n" not in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("placeholder", ["${SOURCE}", "$SOURCE", "<source>", "{{source}}", "${kafka.source}", "@SOURCE@"])
@pytest.mark.parametrize("line", ["A.bootstrap.servers = {}", "A.bootstrap.servers = {}:9092", "A->B.topics = {}", "{}.tasks.max = 1"])
def test_templates_are_to_be_filled_first(tmp_path: Path, placeholder: str, line: str) -> None:
    """No other problem is named: all follow from it."""
    with pytest.raises(ConfigError) as caught:
        import_mm2(write(tmp_path, BASE + line.format(placeholder) + "\nzzz = (\n"), tmp_path / "mirror.yaml")
    assert caught.value.message.endswith(f"{placeholder} is a placeholder") and ":5: " in caught.value.message
    assert "envsubst" in caught.value.hint


def test_a_word_in_capitals_as_an_address_is_probably_a_placeholder(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, BASE + "A.bootstrap.servers = SOURCE_BROKERS\n")
    assert found == "5: A.bootstrap.servers: SOURCE_BROKERS is not host:port; if it is a placeholder, fill the template first"


IDENTITY = "replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"


@pytest.mark.parametrize(
    ("there", "back"), [(".*", ".*"), ("a.*", "ab"), ("(x|orders)", "orders"), (r"pay\\..*", r".*\\.eu"), ("[a-c]1", "b1")]
)
def test_identity_both_ways_is_a_loop_where_topics_meet(tmp_path: Path, there: str, back: str) -> None:
    found = problems(tmp_path, BASE + f"B->A.enabled=true\nA->B.topics={there}\nB->A.topics={back}\n" + IDENTITY)
    assert len(found) == 1 and "8: replication.policy.class: A->B and B->A keep names and both copy e.g. " in found[0], found


@pytest.mark.parametrize(("there", "back"), [(r"a\\..*", r"b\\..*"), ("orders", "payments, users"), (".*_out", ".*_in")])
def test_identity_both_ways_with_other_topics_is_no_loop(tmp_path: Path, there: str, back: str) -> None:
    _, config = imported(tmp_path, BASE + f"B->A.enabled=true\nA->B.topics={there}\nB->A.topics={back}\n" + IDENTITY)
    assert [mirror.naming for mirror in config.mirrors] == ["identity", "identity"]


HUB = "clusters = east, west, hub\n" + "".join(f"{alias}.bootstrap.servers = {alias}:9092\n" for alias in ("east", "west", "hub"))
FAN_IN = HUB + "east->hub.enabled = true\nwest->hub.enabled = true\n" + IDENTITY


def test_flows_into_one_topic_share_it(tmp_path: Path) -> None:
    """Alone, the second mirror halts because the first one has the topic."""
    report, config = imported(tmp_path, FAN_IN + "topics = orders\nsync.group.offsets.enabled = true\n")
    assert [(mirror.writers, mirror.groups) for mirror in config.mirrors] == [("shared", None)] * 2
    rows = [key for key in report.keys if key.became.endswith("writers: shared")]
    assert [(key.key, key.outcome) for key in rows] == [("replication.policy.class", "changed")] * 2
    assert "groups are left out" in rows[0].why


@pytest.mark.parametrize(
    "text",
    [
        FAN_IN + "east->hub.topics = orders\nwest->hub.topics = users\n",
        FAN_IN + "west->hub.enabled = false\n",
        FAN_IN.replace(IDENTITY, "") + "topics = orders\n",
        FAN_IN.replace("west->hub", "hub->west") + "topics = orders\n",
    ],
)
def test_flows_with_topics_of_their_own_stay_sole_writers(tmp_path: Path, text: str) -> None:
    report, config = imported(tmp_path, text)
    assert {mirror.writers for mirror in config.mirrors} == {"sole"}
    assert not [key for key in report.keys if "writers" in key.became]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("(a", 'regex "(a" does not compile'),
        ("*", 'for any text write ".*"'),
        ("a{1,3}", 'regex "a{1" has a brace without its pair'),
        ("a,,b", "has an empty entry"),
        ("", "is empty: it selects nothing"),
        ("[a-z&&[^b]]", "means something else in Python than in Java"),
        (r"\\p{L}+", "does not compile"),
        ("(?i)a, b", "its flag also holds for those after it"),
    ],
)
def test_regexes_that_cannot_be_taken(tmp_path: Path, value: str, why: str) -> None:
    found = problems(tmp_path, BASE + f"A->B.topics={value}\n")
    assert len(found) == 1 and found[0].startswith("5: A->B.topics: ") and why in found[0], found


def test_unknown_keys_are_refused_with_the_nearest(tmp_path: Path) -> None:
    found = refused(tmp_path, BASE + "A->B.emit.heartbeat.enabled=true\ntask.max=4\nA.boostrap.servers=x\nA.topics=x\n")
    assert found["5: A->B.emit.heartbeat.enabled"] == "unknown key; did you mean A->B.emit.heartbeats.enabled?"
    assert found["7: A.boostrap.servers"] == "unknown key; did you mean A.bootstrap.servers?"
    assert found["8: A.topics"] == "is a key of a flow: write it as A->B.topics, or as topics for all flows"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("replication.policy.class=com.acme.Policy", "is Java code"),
        ("topic.filter.class=com.acme.Filter", "is Java code"),
        ("A->B.transforms=x", "records are copied unchanged"),
        ("key.converter=org.apache.kafka.connect.json.JsonConverter", "copied as bytes"),
        ("errors.tolerance=all", "no record is skipped"),
        ("refresh.topics.enabled=false", "always included"),
        ("A.consumer.auto.offset.reset=none", "neither earliest nor latest"),
        ("consumer.sasl.mechanism=PLAIN", "one way to connect: write it as ALIAS.sasl.mechanism"),
        ("A->C.topics=x", 'no cluster "C"'),
        ("A.security.protocol=SSL\nA.ssl.truststore.type=PEM\nA.ssl.truststore.location=a.pem", "no such file: "),
    ],
)
def test_what_cannot_be_carried_is_refused_with_the_reason(tmp_path: Path, line: str, why: str) -> None:
    found = refused(tmp_path, BASE + line + "\n")
    assert len(found) == 1 and why in next(iter(found.values())), found


SASL = "A.security.protocol=SASL_SSL\n"
JAAS = 'A.sasl.jaas.config=com.x.{}LoginModule required username="{}" password="{}";\n'


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (SASL, "without sasl.mechanism is Kerberos"),
        (SASL + "A.sasl.mechanism=GSSAPI\n", "is GSSAPI; supported are"),
        (SASL + "A.sasl.mechanism=AWS_MSK_IAM\nA.sasl.jaas.config=software.IAMLoginModule required;\n", "is AWS_MSK_IAM"),
        (SASL + "A.sasl.mechanism=SCRAM-SHA-512\n", "a login in the file of -Djava.security.auth.login.config is not read"),
        ("A.security.protocol=SASL_PLAINTEXT\nA.sasl.mechanism=PLAIN\n" + JAAS.format("Plain", "u", "geheim"), "unencrypted"),
        (SASL + "A.sasl.mechanism=SCRAM-SHA-512\nA.sasl.jaas.config=nonsense geheim\n", "is not PlainLoginModule or ScramLoginModule"),
    ],
)
def test_a_login_that_cannot_be_carried_is_left_to_be_filled_in(tmp_path: Path, lines: str, why: str) -> None:
    """The rest of the file is converted; what was there stands beside the gap."""
    assert any(why in reason for reason in refused(tmp_path, BASE + lines).values())
    report, config = imported(tmp_path, BASE + lines, without_refused=True)
    security = config.clusters["A"].security
    assert (security.mechanism, security.username, str(security.password)) == ("SCRAM-SHA-512", "CHANGE-ME", "${env:A_PASSWORD}")
    assert "A_PASSWORD" in report.secrets
    text = (tmp_path / "mirror.yaml").read_text()
    (line,) = [line for line in text.splitlines() if "CHANGE-ME" in line]
    assert f"  # {report.refused[0].key} in line " in line and why in line
    assert "geheim" not in text + repr(report)


def test_a_jaas_config_is_refused_with_its_mechanism(tmp_path: Path) -> None:
    found = refused(tmp_path, BASE + SASL + "A.sasl.mechanism=OAUTHBEARER\n" + JAAS.format("Plain", "u", "p"))
    assert found["7: A.sasl.jaas.config"] == "belongs to A.sasl.mechanism, which is refused"


@pytest.mark.parametrize(
    ("provider", "reference", "user", "password"),
    [
        ("EnvVarConfigProvider", "${{p:{}}}", "${env:USER_A}", "${env:PASS_A}"),
        ("DirectoryConfigProvider", "${{p:/mnt/a:{}}}", "${file:/mnt/a/USER_A}", "${file:/mnt/a/PASS_A}"),
        ("FileConfigProvider", "${{p:/mnt/a.properties:{}}}", "${env:A_USERNAME}", "${env:A_PASSWORD}"),
    ],
)
def test_a_login_by_references_stays_one(tmp_path: Path, provider: str, reference: str, user: str, password: str) -> None:
    text = BASE + SASL + "A.sasl.mechanism=SCRAM-SHA-512\nconfig.providers=p\n"
    text += f"config.providers.p.class=org.apache.kafka.common.config.provider.{provider}\n"
    _, config = imported(tmp_path, text + JAAS.format("Scram", reference.format("USER_A"), reference.format("PASS_A")))
    security = config.clusters["A"].security
    assert (str(security.username), str(security.password)) == (user, password)


def test_a_user_name_that_is_a_placeholder_is_named(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, BASE + SASL + "A.sasl.mechanism=PLAIN\n" + JAAS.format("Plain", "${KAFKA_USER}", "geheim"))
    assert "the user name is a placeholder" in found and "geheim" not in found


@pytest.mark.parametrize(
    "client", ["A.consumer.", "A.admin.", "A->B.consumer.", "A->B.source.consumer.", "A->B.source.admin.", "A->C.consumer."]
)
def test_a_login_repeated_for_a_client_is_the_same_one(tmp_path: Path, client: str) -> None:
    text = BASE.replace("A, B", "A, B, C") + "A.security.protocol=SASL_SSL\nA.sasl.mechanism=PLAIN\n" + JAAS.format("Plain", "u", "p")
    repeated = "".join(line.replace("A.", client, 1) + "\n" for line in text.splitlines()[4:])
    report, config = imported(tmp_path, text + repeated)
    assert {outcomes(report)[key] for key in outcomes(report) if key.startswith(client) and key != "A.sasl"} == {"not_needed"}
    alone, again = imported(tmp_path, BASE.replace("A, B", "A, B, C") + repeated, force=True)
    assert again.clusters["A"].security == config.clusters["A"].security
    assert config.clusters["B"].security.protocol == "PLAINTEXT"


def test_a_login_of_the_targets_clients_is_the_targets(tmp_path: Path) -> None:
    _, config = imported(tmp_path, BASE + "A->B.producer.security.protocol=SSL\nA->B.target.admin.security.protocol=SSL\n")
    assert (config.clusters["A"].security.protocol, config.clusters["B"].security.protocol) == ("PLAINTEXT", "SSL")
    (tmp_path / "mirror.yaml").unlink()
    (found,) = problems(tmp_path, BASE + "A->B.producer.security.protocol=SSL\nB.security.protocol=PLAINTEXT\n")
    assert "contradicts B.security.protocol in line 6" in found


def test_refused_keys_can_be_left_out_by_name(tmp_path: Path) -> None:
    report, config = imported(tmp_path, BASE + "transforms=x\nerrors.tolerance=all\n", without_refused=True)
    assert [key.key for key in report.refused] == ["transforms", "errors.tolerance"]
    assert config.mirror("A-to-B").naming == "prefix"
    text = (tmp_path / "mirror.yaml").read_text()
    assert "#   transforms in line 5: records are copied unchanged\n#   errors.tolerance in line 6: " in text


def test_what_would_not_load_is_not_written_even_then(tmp_path: Path) -> None:
    path = write(tmp_path, BASE + "topics = " + "x" * 10 + "\nA->B.replication.factor = 1000\n")
    with pytest.raises(ConfigError, match="topics.replication_factor: ") as caught:
        import_mm2(path, tmp_path / "mirror.yaml", without_refused=True)
    assert "draft" not in caught.value.message
    assert [found.name for found in tmp_path.iterdir()] == ["mm2.properties"]


@pytest.mark.parametrize("policy", ["com.example.KeepNamesPolicy", "com.example.OurPolicy"])
def test_names_that_a_class_decides_are_asked_for(tmp_path: Path, policy: str) -> None:
    """Left out, the names would be those of the default: topics that nobody reads, copied from the start."""
    text = BASE + f"replication.policy.class={policy}\n"
    assert "say so with --naming" in refused(tmp_path, text)["5: replication.policy.class"]
    with pytest.raises(UsageError, match="say so with --naming"):
        import_mm2(write(tmp_path, text), tmp_path / "mirror.yaml", without_refused=True)
    assert not (tmp_path / "mirror.yaml").exists()
    for naming in ("identity", "prefix", "{topic}.copy"):
        report, config = imported(tmp_path, text, naming=naming, force=True)
        assert config.mirror("A-to-B").naming == naming
        assert outcomes(report)["replication.policy.class"] == "changed"
    with pytest.raises(UsageError, match="--naming copies is neither"):
        import_mm2(write(tmp_path, text), tmp_path / "mirror.yaml", naming="copies", force=True)


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_the_commands_that_convert_stores_convert_all_they_hold(tmp_path: Path, kind: str) -> None:
    """Two authorities in a truststore; certificate and key of a keystore. The commands are those of the report."""
    store, trust = tmp_path / "a store", tmp_path / "trust"

    def keytool(keystore: Path, *words: str) -> None:
        common = ["keytool", "-storetype", kind, "-storepass", "changeit", "-keystore", str(keystore)]
        subprocess.run([*common, *words], check=True, capture_output=True, cwd=tmp_path)

    for name in ("one", "two"):
        keytool(tmp_path / name, "-genkeypair", "-keyalg", "RSA", "-dname", f"CN={name}", "-alias", name, "-keypass", "changeit")
        keytool(tmp_path / name, "-exportcert", "-alias", name, "-file", "certificate")
        keytool(trust, "-importcert", "-noprompt", "-alias", name, "-file", "certificate")
    (tmp_path / "one").rename(store)
    text = BASE + f"A.security.protocol=SSL\nA.ssl.truststore.location={trust}\nA.ssl.keystore.location={store}\n"
    text += f"A.ssl.truststore.type={kind}\nA.ssl.keystore.type={kind}\n" if kind != "JKS" else ""
    for why in refused(tmp_path, text).values():
        command = why.partition("convert it: ")[2].partition("; then ssl.")[0].replace("STORE_PASSWORD=...", "STORE_PASSWORD=changeit")
        subprocess.run(["sh", "-c", command], check=True, capture_output=True, cwd=tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tmp_path / "A-ca.pem")
    assert context.cert_store_stats()["x509"] == 2
    context.load_cert_chain(tmp_path / "A-client.pem")


def test_a_truststore_that_is_javas_own_needs_no_file(tmp_path: Path) -> None:
    text = BASE + "A.security.protocol=SSL\nA.ssl.truststore.location=/opt/java/lib/security/cacerts\nA.ssl.truststore.password=changeit\n"
    report, config = imported(tmp_path, text)
    assert config.clusters["A"].security.ca_file is None
    assert outcomes(report)["A.ssl.truststore.location"] == "changed"


@pytest.mark.parametrize(
    ("lines", "naming"),
    [
        ("replication.policy.separator=\nsource.cluster.alias=\ntarget.cluster.alias=", "identity"),
        ("replication.policy.separator=\nsource.cluster.alias=", "identity"),
        ("A->B.replication.policy.separator=\nA->B.source.cluster.alias=", "identity"),
        ("replication.policy.separator=", "{source}{topic}"),
        ("source.cluster.alias=dc1", "dc1.{topic}"),
        ("source.cluster.alias=A", "prefix"),
        ("replication.policy.separator=-\nsource.cluster.alias=", "-{topic}"),
        (IDENTITY + "replication.policy.separator=\nsource.cluster.alias=", "identity"),
        ("replication.policy.class=com.x.CustomMM2ReplicationPolicy", "identity"),
        ("replication.policy.class=PrefixlessReplicationPolicy", "identity"),
    ],
)
def test_names_are_kept_the_old_ways_too(tmp_path: Path, lines: str, naming: str) -> None:
    """Before Kafka 3.0 had IdentityReplicationPolicy people emptied separator and alias, or wrote a class of their own."""
    report, config = imported(tmp_path, BASE + lines + "\n")
    assert config.mirror("A-to-B").naming == naming
    assert "refused" not in outcomes(report).values()


def test_a_cluster_may_be_called_source(tmp_path: Path) -> None:
    text = BASE.replace("A", "source").replace("B", "target") + "source.cluster.alias=\nreplication.policy.separator=\n"
    assert imported(tmp_path, text)[1].mirror("source-to-target").naming == "identity"


@pytest.mark.parametrize("servers", ["SASL_SSL://a:9092", "PLAINTEXT://a:9092, SSL://b.x:9093", "kafka://[::1]:9092"])
def test_a_protocol_before_an_address_is_dropped_as_in_kafkas_clients(tmp_path: Path, servers: str) -> None:
    _, config = imported(tmp_path, BASE + f"A.bootstrap.servers = {servers}\n")
    assert "//" not in "".join(config.clusters["A"].bootstrap_servers)


@pytest.mark.parametrize(
    "key",
    [
        "A.max.poll.records", "exclude.internal.topics", "A->B.replication.enabled", "internal.topic.replication.factor", "zzz",
        "A.auto.commit.interval.ms", "A.transaction.state.log.replication.factor", "compression.type", "A->B.acks",
    ],
)  # fmt: skip
def test_keys_that_mirrormaker_ignores_do_not_stop_the_import(tmp_path: Path, key: str) -> None:
    report, _ = imported(tmp_path, BASE + f"{key} = 3\n")
    row = next(row for row in report.keys if row.key == key)
    assert (row.outcome, row.why) == ("not_needed", "MirrorMaker ignores it: it knows no such key here")


@pytest.mark.parametrize("key", ["refresh.topics.enabled", "A->B.refresh.topics.enabled", "refresh.groups.enabled"])
def test_why_a_refresh_is_not_needed(tmp_path: Path, key: str) -> None:
    report, _ = imported(tmp_path, BASE + f"{key} = true\n")
    row = next(row for row in report.keys if row.key == key)
    assert (row.outcome, row.why) == ("not_needed", f"new {'groups' if 'groups' in key else 'topics'} are always noticed")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("replication.factor = 3  # racks", 'must be a whole number from -1 on; "# racks" belongs to the value'),
        ("B->A.enabled = false # passive", 'must be true or false; "# passive" belongs to the value'),
        ("sync.topic.acls.enabled = true ! yes", "Java property files have no comments at the end of a line"),
        ('A->B.topics = ".*"', "matches nothing; the quotes belong to the value: Java property files have none"),
        ("A->B.topics = .* # all", 'matches nothing; "# all" belongs to the value'),
        ("A->B.topics = orders, 'users'", "matches nothing: no topic name holds '"),
        ("sync.group.offsets.enabled = true\ngroups = ''", "the quotes belong to the value"),
        ("A.bootstrap.servers = a:9092 # east", "is not host:port"),
    ],
)
def test_comments_and_quotes_in_values_are_named(tmp_path: Path, line: str, why: str) -> None:
    (found,) = problems(tmp_path, BASE + line + "\n")
    assert why in found


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    path, output = write(tmp_path, BASE), tmp_path / "mirror.yaml"
    output.write_text("mine")
    with pytest.raises(UsageError, match="already exists and was not changed"):
        import_mm2(path, output)
    assert output.read_text() == "mine"
    assert import_mm2(path, output, force=True).path == str(output)
    assert stat.S_IMODE(output.stat().st_mode) == 0o644
    assert sorted(found.name for found in tmp_path.iterdir()) == ["mirror.yaml", "mm2.properties"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mm2\.properties: No such file") as caught:
        import_mm2(tmp_path / "mm2.properties", tmp_path / "mirror.yaml")
    assert "connect-mirror-maker.sh" in caught.value.hint


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        import_mm2(write(tmp_path, BASE), tmp_path / "none" / "mirror.yaml")
