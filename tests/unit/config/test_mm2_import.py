"""A property file of MirrorMaker 2 becomes a mirror.yaml that loads, and every key has an outcome."""

from __future__ import annotations

import re
import stat
from pathlib import Path

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


def imported(folder: Path, text: str, **options: bool) -> tuple[ImportReport, Config]:
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
A->B.topics = y
B->B.enabled = true
replication.factor = two
sync.topic.configs.enabled = yes
"""
    assert problems(tmp_path, text) == [
        "1: B.bootstrap.servers: is missing",
        "3: A.consumer.security.protocol: contradicts A.security.protocol in line 4; a cluster has one way to connect",
        '6: A->C.enabled: no cluster "C": clusters lists A, B',
        "8: A->B.topics: contradicts line 7, which sets another value; keep one of the two",
        "9: B->B.enabled: source and target are the same cluster",
        "10: replication.factor: must be a whole number from -1 on",
        "11: sync.topic.configs.enabled: must be true or false",
    ]


def test_equal_repetitions_are_no_contradiction(tmp_path: Path) -> None:
    imported(tmp_path, BASE + "A->B.topics = x\nA->B.topics = x\n")


@pytest.mark.parametrize("line", ["", "A->B.enabled = false\n", "A->B.enable = true\n"])
def test_no_enabled_flow(tmp_path: Path, line: str) -> None:
    text = "clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\n" + line
    assert problems(tmp_path, text) == ["1: clusters: no flow is enabled: nothing is copied; write A->B.enabled=true"]


def test_no_clusters_and_a_connect_file(tmp_path: Path) -> None:
    assert problems(tmp_path, "topics=x\n") == ["1: clusters: is missing"]
    connect = "name=mm\nconnector.class=org.apache.kafka.connect.mirror.MirrorSourceConnector\n"
    assert problems(tmp_path, connect)[0].startswith("2: clusters: is missing: the file describes a Connect connector")


def test_identity_both_ways_is_a_loop(tmp_path: Path) -> None:
    policy = "replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
    (one, two) = problems(tmp_path, BASE + "B->A.enabled=true\n" + policy)
    assert one.startswith("6: replication.policy.class: A->B keeps names and B->A is enabled: records would go round in circles")
    assert two.startswith("6: replication.policy.class: B->A keeps names")


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
    found = refused(tmp_path, BASE + "A->B.emit.heartbeat.enabled=true\ntask.max=4\nA.boostrap.servers=x\nzzz=geheim\nA.topics=x\n")
    assert found["5: A->B.emit.heartbeat.enabled"] == "unknown key; did you mean A->B.emit.heartbeats.enabled?"
    assert found["7: A.boostrap.servers"] == "unknown key; did you mean A.bootstrap.servers?"
    assert found["8: zzz"] == "unknown key; MirrorMaker ignores it too, remove it"
    assert found["9: A.topics"] == "is a key of a flow: write it as A->B.topics, or as topics for all flows"


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
        ("A->B.source.consumer.sasl.mechanism=PLAIN", "one way to connect: write it as ALIAS.sasl.mechanism"),
        ("A->C.topics=x", 'no cluster "C"'),
        ("A.security.protocol=SASL_PLAINTEXT\nA.sasl.mechanism=PLAIN", "unencrypted"),
        ("A.security.protocol=SASL_SSL\nA.sasl.mechanism=GSSAPI", "supported are PLAIN"),
        ("A.security.protocol=SSL\nA.ssl.truststore.location=a.jks", "JKS stores cannot be read: keytool -exportcert -rfc"),
        ("A.security.protocol=SSL\nA.ssl.keystore.type=PKCS12\nA.ssl.keystore.location=a.p12", "PKCS12 stores cannot be read: openssl"),
        ("A.security.protocol=SSL\nA.ssl.truststore.type=PEM\nA.ssl.truststore.location=a.pem", "no such file: "),
    ],
)
def test_what_cannot_be_carried_is_refused_with_the_reason(tmp_path: Path, line: str, why: str) -> None:
    found = refused(tmp_path, BASE + line + "\n")
    assert len(found) == 1 and why in next(iter(found.values())), found


def test_a_login_without_a_mechanism_is_kerberos(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, BASE + "A.security.protocol=SASL_SSL\n")
    assert found.startswith("5: A.security.protocol: without sasl.mechanism this is Kerberos")


def test_refused_keys_can_be_left_out_by_name(tmp_path: Path) -> None:
    report, config = imported(tmp_path, BASE + "zzz=1\nerrors.tolerance=all\n", without_refused=True)
    assert [key.key for key in report.refused] == ["zzz", "errors.tolerance"]
    assert config.mirror("A-to-B").naming == "prefix"


def test_what_would_not_load_is_not_written_even_then(tmp_path: Path) -> None:
    """Without its mechanism a SASL cluster cannot be reached."""
    path = write(tmp_path, BASE + "A.security.protocol=SASL_SSL\nA.sasl.mechanism=GSSAPI\n")
    with pytest.raises(ConfigError, match=re.escape("clusters.A.security.mechanism: is missing")) as caught:
        import_mm2(path, tmp_path / "mirror.yaml", without_refused=True)
    assert "draft" not in caught.value.message
    assert [found.name for found in tmp_path.iterdir()] == ["mm2.properties"]


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
