"""What kind of file was handed in: other tools' files, and templates that are not filled in, get one sentence instead of many problems."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mirror_pipeline.config.mm2.properties_file import Entry
from mirror_pipeline.config.secrets import SECRET_KEY
from mirror_pipeline.errors import ConfigError

_PAGE = 'see the page "From MirrorMaker 2" of the documentation'
_STRIMZI = re.compile(r"^\s*(apiVersion:\s*['\"]?kafka\.strimzi\.io/|kind:\s*['\"]?KafkaMirrorMaker2?\b)", re.MULTILINE)
_CONNECTOR = re.compile(r"(?:^|[{,])\s*[\"']?connector\.class[\"']?\s*[:=]", re.MULTILINE)
_OWN = re.compile(r"(?=.*^clusters:\s*$)(?=.*^mirrors:\s*$)", re.MULTILINE | re.DOTALL)
_YAML = re.compile(r"^---\s*$|^[\w-]+:\s*\n\s+(?:- )?[\w-]+:\s", re.MULTILINE)
_OLD = ("zookeeper.connect", "bootstrap.servers", "group.id", "auto.offset.reset", "acks")
# envsubst and shells, Terraform and Helm, Ansible, angle brackets of guides, and @NAME@ of Maven. References of Kafka have a colon.
PLACEHOLDER = re.compile(r"\$\{[A-Za-z_][\w.-]*\}|\$[A-Z_][A-Z0-9_]*\b|\{\{.*?\}\}|(?<![?\w])<[\w .-]+>|@[A-Z_]{3,}@")


def refuse_other_kinds(text: str, shown: str) -> None:
    """Say which file this is, where it is not a property file of MirrorMaker's dedicated mode.

    Raises:
        ConfigError: it is one of another tool.
    """
    if _STRIMZI.search(text):
        what = "a KafkaMirrorMaker2 resource of Strimzi"
        hint = f"write its clusters and mirrors as a property file (clusters, A.bootstrap.servers, A->B.enabled, A->B.topics), {_PAGE}"
    elif _CONNECTOR.search(text):
        what = "a connector of a Connect cluster"
        hint = f"write clusters, A.bootstrap.servers and A->B.enabled from its source.cluster.* and target.cluster.* keys, {_PAGE}"
    elif _OWN.search(text):
        what, hint = "a mirror.yaml already", "use it with -c FILE"
    elif text.lstrip()[:1] in ("{", "["):
        what, hint = "JSON", "name the file that connect-mirror-maker.sh is started with"
    elif _YAML.search(text):
        what, hint = "YAML", "name the file that connect-mirror-maker.sh is started with"
    else:
        return
    raise ConfigError(f"{shown}: this is {what}, not a property file of MirrorMaker 2 (dedicated mode)", hint=hint)


def refuse_client_files(entries: Iterable[Entry], shown: str) -> None:
    """A consumer's or producer's settings, as the first MirrorMaker is started with.

    Raises:
        ConfigError: that is what the file holds.
    """
    keys = {entry.key for entry in entries}
    if not any("->" in key or key == "clusters" for key in keys) and keys.intersection(_OLD):
        raise ConfigError(
            f"{shown}: this holds settings of one client, as the first MirrorMaker (kafka-mirror-maker.sh) takes them, and no topics",
            hint=f"write mirror.yaml with mirror init: naming: identity, and --whitelist as topics.include; {_PAGE}",
        )


def refuse_templates(entries: Iterable[Entry], shown: str) -> None:
    """A file with placeholders where values belong.

    Raises:
        ConfigError: one line for each placeholder.
    """
    lines = []
    for entry in entries:
        found = PLACEHOLDER.search(entry.key) or (None if SECRET_KEY.search(entry.key) else PLACEHOLDER.search(entry.value))
        if found is not None:
            lines.append(f"{shown}:{entry.line}: {entry.key}: {found[0]} is a placeholder")
    if lines:
        raise ConfigError("\n".join(lines), hint=f"fill the template first, e.g. envsubst < {shown} > filled.properties")
