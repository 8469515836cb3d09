"""One cluster of the property file as a block of ``clusters`` in mirror.yaml."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mirror_pipeline.config.mm2.file_kind import PLACEHOLDER
from mirror_pipeline.config.mm2.key_table import CARRIED, CHANGED, CLUSTER_KEYS, CLUSTER_RULES, NOT_NEEDED, REFUSED, KeyRule, rule_of
from mirror_pipeline.config.mm2.properties_file import Entry, trailing
from mirror_pipeline.config.mm2.scoped_keys import CLIENTS, FLOW_CLIENTS, ScopedKeys
from mirror_pipeline.host import expanded

FILL_IN = "CHANGE-ME"
MM2_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN = re.compile(r"\s*[\w.]*\.(PlainLoginModule|ScramLoginModule)\s+required\b(.*?);?\s*", re.DOTALL)
_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s;"']+))""")
_REFERENCE = re.compile(r"\$\{(\w+):(?:([^}:]*):)?([^}]*)\}")
_PROTOCOL = re.compile(r"^[0-9a-zA-Z%._-]*://")  # Kafka's clients accept and drop it (ClientUtils, Utils.getHost)
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+|\$\{env:[^{}]+\}):([0-9]{1,5})|\$\{env:[^{}]+\}")


def alias_in_yaml(alias: str) -> str:
    """The alias as mirror.yaml allows it: letters, digits, ``_`` and ``-``."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", alias).lstrip("_-")[:63] or "cluster"


def _not_carried(mechanism: str, protocol: str) -> str:
    """Why a mechanism is refused; "" when it is carried."""
    if mechanism not in MM2_MECHANISMS:
        return f"is {mechanism}; supported are {', '.join(MM2_MECHANISMS)}"
    plain = mechanism == "PLAIN" and protocol == "SASL_PLAINTEXT"
    return "PLAIN would send the password unencrypted; use SASL_SSL or SCRAM-SHA-512" if plain else ""


@dataclass(slots=True)
class ClusterBlock:
    """Converts the settings of one cluster.

    Args:
        alias: as the property file has it.
        keys: the file; outcomes are noted there.
        folder: from which relative paths count.
    """

    alias: str
    keys: ScopedKeys
    folder: Path
    open_login: str = field(default="", init=False)
    """What the file said of a login that is not carried; ``username`` is then FILL_IN."""

    def build(self) -> dict[str, Any]:
        """The block; what is wrong with it is noted in the keys."""
        block: dict[str, Any] = {}
        servers = self._take("bootstrap.servers")
        if servers is None:
            self.keys.problems.append((1, f"{self.alias}.bootstrap.servers", "is missing"))
        else:
            block["bootstrap_servers"] = self._servers(servers)
        security = self._security()
        if security:
            block["security"] = security
        for entry in self._all():
            self._rest(entry)
        return block

    def _all(self) -> list[Entry]:
        return list(self.keys.by_cluster.get(self.alias, {}).values())

    def _name(self, entry: Entry) -> str:
        return entry.key.removeprefix(f"{self.alias}.")

    def _take(self, key: str) -> Entry | None:
        """The value that the cluster's clients share; a client with another one contradicts it."""
        own = self.keys.by_cluster.get(self.alias, {})
        shared = own.get(key) or self.keys.top.get(key)
        for entry in self._of_clients(own, key):
            shared = shared or entry
            if entry.value != shared.value:
                self.keys.problem(entry, f"contradicts {shared.key} in line {shared.line}; a cluster has one way to connect")
            elif entry is not shared:
                self.keys.note(entry, NOT_NEEDED, why=f"the same as {shared.key}")
        return shared

    def _of_clients(self, own: dict[str, Entry], key: str) -> Iterator[Entry]:
        """The same key as single clients have it: of the cluster, and of flows on the cluster's side of them."""
        yield from (own[client + key] for client in CLIENTS if client + key in own)
        for flow, part in self.keys.by_flow.items():
            sides = [side for side, alias in (("source", flow.source), ("target", flow.target)) if alias == self.alias]
            for client in (name for side in sides for name in FLOW_CLIENTS[side]):
                if client + key in part:
                    yield part[client + key]

    def _at(self, key: str) -> str:
        return f"clusters.{alias_in_yaml(self.alias)}.{key}"

    def _servers(self, entry: Entry) -> str:
        parts = [_PROTOCOL.sub("", part.strip()) for part in entry.value.split(",") if part.strip()]
        wrong = next((part for part in parts if not _ADDRESS.fullmatch(part)), "" if parts else "an empty text")
        if wrong:
            template = "; if it is a placeholder, fill the template first" if re.fullmatch(r"[A-Z][A-Z0-9_]*", wrong) else ""
            self.keys.problem(entry, f"{wrong} is not host:port{template}{trailing(entry)}")
        self.keys.note(entry, CARRIED, self._at("bootstrap_servers"))
        return ",".join(parts)

    def _security(self) -> dict[str, Any]:
        entry = self._take("security.protocol")
        protocol = "PLAINTEXT" if entry is None else entry.value.upper()
        if entry is not None and protocol not in PROTOCOLS:
            self.keys.problem(entry, f"must be one of {', '.join(PROTOCOLS)}")
        block: dict[str, Any] = {"protocol": protocol} if entry is not None else {}
        if entry is not None and protocol.startswith("SASL_"):
            block |= self._login(protocol, entry)
        if entry is not None:
            self.keys.note(entry, CARRIED, self._at("security.protocol"))
        if protocol.endswith("SSL"):
            block |= self._tls()
        for key in sorted(CLUSTER_KEYS):
            unused = self._take(key) if key.startswith(("sasl.", "ssl.")) else None
            rule = rule_of(key, CLUSTER_RULES)
            if unused is not None and rule is not None and rule.outcome is not REFUSED:
                self.keys.note(unused, NOT_NEEDED, why=self._idle(rule, protocol))
        return block

    def _idle(self, rule: KeyRule, protocol: str) -> str:
        family = rule.key.startswith("sasl.") and not protocol.startswith("SASL_")
        return f"has no effect with protocol {protocol}" if family or not protocol.endswith("SSL") else rule.why

    def _login(self, protocol: str, at: Entry) -> dict[str, Any]:
        mechanism = self._take("sasl.mechanism")
        jaas = self._take("sasl.jaas.config")
        if mechanism is None:
            return self._left_open(at, "without sasl.mechanism is Kerberos (GSSAPI), which is not supported; use SCRAM-SHA-512")
        why = _not_carried(mechanism.value, protocol)
        if not why and jaas is None:
            why = f"needs {self.alias}.sasl.jaas.config; a login in the file of -Djava.security.auth.login.config is not read"
            return self._left_open(mechanism, why) | {"mechanism": mechanism.value}
        if why:
            if jaas is not None:
                self.keys.note(jaas, REFUSED, why=f"belongs to {mechanism.key}, which is refused")
            return self._left_open(mechanism, why)
        assert jaas is not None  # noqa: S101 - left open above
        self.keys.note(mechanism, CARRIED, self._at("security.mechanism"))
        return {"mechanism": mechanism.value, **self._jaas(jaas, mechanism.value)}

    def _left_open(self, entry: Entry, why: str) -> dict[str, Any]:
        """A login to be filled in by hand, for a file that is written without what is refused."""
        self.keys.note(entry, REFUSED, why=why)
        self.open_login = f"{entry.key} in line {entry.line} {why}"
        return {"mechanism": "SCRAM-SHA-512", "username": FILL_IN, "password": self._variable("PASSWORD", entry)}

    def _jaas(self, entry: Entry, mechanism: str) -> dict[str, Any]:
        match = _LOGIN.fullmatch(entry.value)
        options = {m[1]: next(v for v in m.groups()[1:] if v is not None) for m in _OPTION.finditer(match[2])} if match else {}
        name = options.get("username", "").replace('\\"', '"')
        if not match or not name or "password" not in options or "tokenauth" in options:
            why = 'is not PlainLoginModule or ScramLoginModule required username="NAME" password="..."'
            return self._left_open(entry, why) | {"mechanism": mechanism}
        if _REFERENCE.search(name):
            name = self._secret("USERNAME", name, entry)
        elif PLACEHOLDER.search(name):
            self.keys.problem(entry, "the user name is a placeholder: fill the template first, e.g. with envsubst")
        reference = self._secret("PASSWORD", options["password"], entry)
        self.keys.note(entry, CHANGED, self._at("security.username, password"), f"the password is read from {reference}")
        return {"username": name, "password": reference}

    def _secret(self, suffix: str, value: str, entry: Entry) -> str:
        """A reference in place of a secret; one to the environment, or to a file with nothing else in it, stays."""
        match = _REFERENCE.fullmatch(value)
        provider = self.keys.top.get(f"config.providers.{match[1]}.class") if match else None
        kind = provider.value.rpartition(".")[2] if provider is not None else ""
        if match and kind == "DirectoryConfigProvider" and match[2]:
            return f"${{file:{match[2]}/{match[3]}}}"
        if match and kind == "EnvVarConfigProvider":
            self.keys.secrets[match[3]] = entry.key
            return f"${{env:{match[3]}}}"
        return self._variable(suffix, entry)

    def _variable(self, suffix: str, entry: Entry) -> str:
        variable = re.sub(r"\W", "_", f"{self.alias}_{suffix}", flags=re.ASCII).upper()
        self.keys.secrets[variable] = entry.key
        return f"${{env:{variable}}}"

    def _tls(self) -> dict[str, Any]:
        block: dict[str, Any] = {}
        trust = self._take("ssl.truststore.location")
        if trust is not None and (path := self._pem("truststore", trust)):
            block["ca_file"] = path
            self.keys.note(trust, CARRIED, self._at("security.ca_file"))
        store = self._take("ssl.keystore.location")
        if store is not None and (path := self._pem("keystore", store)):
            block |= {"cert_file": path, "key_file": path}
            self.keys.note(store, CHANGED, self._at("security.cert_file, key_file"), "the PEM file holds certificate and key")
            password = self._take("ssl.key.password")
            if password is not None:
                block["key_password"] = self._secret("KEY_PASSWORD", password.value, password)
                self.keys.note(password, CHANGED, self._at("security.key_password"), f"is read from {block['key_password']}")
        names = self._take("ssl.endpoint.identification.algorithm")
        if names is not None:
            check = bool(names.value)
            block |= {} if check else {"verify_hostname": False}
            became = self._at("security.verify_hostname")
            self.keys.note(names, CHANGED if not check else CARRIED, became, "" if check else "names in certificates are not checked")
        return block

    def _pem(self, kind: str, location: Entry) -> str:
        """The absolute path of a PEM file; "" when it is refused or not needed."""
        form = self._take(f"ssl.{kind}.type")
        name = form.value.upper() if form is not None else "JKS"
        path = (self.folder / expanded(location.value)).resolve()
        if name != "PEM" and kind == "truststore" and path.name == "cacerts":
            self.keys.note(location, CHANGED, why="Java's own authorities; without ca_file those of the system are used")
        elif name != "PEM":
            why = f"{name} stores cannot be read; convert it: {self._conversion(kind, name, location.value)}"
            copy = "; a copy of Java's cacerts needs no file, remove the key" if kind == "truststore" else ""
            self.keys.note(location, REFUSED, why=f"{why}; then ssl.{kind}.type=PEM and that file as ssl.{kind}.location{copy}")
        elif not path.is_file():
            self.keys.note(location, REFUSED, why=f"no such file: {path}; a relative path counts from the folder of the property file")
        else:
            return str(path)
        password = self._take(f"ssl.{kind}.password")
        if password is not None:
            self.keys.note(password, NOT_NEEDED, why="opens the store; the PEM file in its place has no password")
        return ""

    def _conversion(self, kind: str, form: str, store: str) -> str:
        """The commands that make one PEM file, named after the cluster, of all that a store holds."""
        name, quoted = alias_in_yaml(self.alias), shlex.quote(store)
        if kind == "truststore":
            return f"STORE_PASSWORD=... keytool -list -rfc -keystore {quoted} -storepass:env STORE_PASSWORD > {name}-ca.pem"
        exported = f"openssl pkcs12 -in {{}} -passin env:STORE_PASSWORD -nodes -out {name}-client.pem"
        if form == "PKCS12":
            return f"STORE_PASSWORD=... {exported.format(quoted)}"
        passwords = "-srcstorepass:env STORE_PASSWORD -deststorepass:env STORE_PASSWORD"
        steps = f"keytool -importkeystore -srckeystore {quoted} -destkeystore {name}.p12 -deststoretype PKCS12 {passwords}"
        return f"export STORE_PASSWORD=...; {steps} && {exported.format(f'{name}.p12')}"

    def _rest(self, entry: Entry) -> None:
        name = self._name(entry)
        for client in CLIENTS:
            name = name.removeprefix(client) if name.startswith((client + "ssl.", client + "sasl.", client + "security.")) else name
        rule = rule_of(name, CLUSTER_RULES)
        if rule is not None:
            self.keys.note(entry, rule.outcome, why=rule.why)
