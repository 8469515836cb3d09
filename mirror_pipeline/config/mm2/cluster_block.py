"""One cluster of the property file as a block of ``clusters`` in mirror.yaml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirror_pipeline.config.mm2.key_table import CARRIED, CHANGED, CLUSTER_KEYS, CLUSTER_RULES, NOT_NEEDED, REFUSED, KeyRule, rule_of
from mirror_pipeline.config.mm2.properties_file import Entry
from mirror_pipeline.config.mm2.scoped_keys import CLIENTS, ScopedKeys

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN = re.compile(r"\s*[\w.]*\.(PlainLoginModule|ScramLoginModule)\s+required\b(.*?);?\s*", re.DOTALL)
_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s;"']+))""")
_REFERENCE = re.compile(r"\$\{(\w+):(?:([^}:]*):)?([^}]*)\}")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+|\$\{env:[^{}]+\}):([0-9]{1,5})|\$\{env:[^{}]+\}")


def alias_in_yaml(alias: str) -> str:
    """The alias as mirror.yaml allows it: letters, digits, ``_`` and ``-``."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", alias).lstrip("_-")[:63] or "cluster"


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
        for client in CLIENTS:
            entry = own.get(client + key)
            if entry is None:
                continue
            shared = shared or entry
            if entry.value != shared.value:
                self.keys.problem(entry, f"contradicts {shared.key} in line {shared.line}; a cluster has one way to connect")
            elif entry is not shared:
                self.keys.note(entry, NOT_NEEDED, why=f"the same as {shared.key}")
        return shared

    def _at(self, key: str) -> str:
        return f"clusters.{alias_in_yaml(self.alias)}.{key}"

    def _servers(self, entry: Entry) -> str:
        parts = [part.strip() for part in entry.value.split(",") if part.strip()]
        wrong = next((part for part in parts if not _ADDRESS.fullmatch(part)), "" if parts else "an empty text")
        if wrong:
            self.keys.problem(entry, f"{wrong} is not host:port")
        self.keys.note(entry, CARRIED, self._at("bootstrap_servers"))
        return ",".join(parts)

    def _security(self) -> dict[str, Any]:
        entry = self._take("security.protocol")
        protocol = "PLAINTEXT" if entry is None else entry.value.upper()
        if entry is not None and protocol not in PROTOCOLS:
            self.keys.problem(entry, f"must be one of {', '.join(PROTOCOLS)}")
        block: dict[str, Any] = {"protocol": protocol} if entry is not None else {}
        if entry is not None:
            self.keys.note(entry, CARRIED, self._at("security.protocol"))
        if protocol.startswith("SASL_"):
            block |= self._login(protocol, entry)
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

    def _login(self, protocol: str, at: Entry | None) -> dict[str, Any]:
        mechanism = self._take("sasl.mechanism")
        if mechanism is None:
            if at is not None:
                self.keys.problem(at, "without sasl.mechanism this is Kerberos (GSSAPI), which is not supported; use SCRAM-SHA-512")
            return {}
        if mechanism.value not in MECHANISMS:
            self.keys.note(mechanism, REFUSED, why=f"supported are {', '.join(MECHANISMS)}")
            return {}
        if mechanism.value == "PLAIN" and protocol == "SASL_PLAINTEXT":
            self.keys.note(mechanism, REFUSED, why="PLAIN would send the password unencrypted; use SASL_SSL or SCRAM-SHA-512")
            return {}
        self.keys.note(mechanism, CARRIED, self._at("security.mechanism"))
        jaas = self._take("sasl.jaas.config")
        if jaas is None:
            self.keys.problem(mechanism, f"needs {self.alias}.sasl.jaas.config with user name and password")
            return {}
        return {"mechanism": mechanism.value, **self._jaas(jaas)}

    def _jaas(self, entry: Entry) -> dict[str, Any]:
        match = _LOGIN.fullmatch(entry.value)
        options = {m[1]: next(v for v in m.groups()[1:] if v is not None) for m in _OPTION.finditer(match[2])} if match else {}
        name = options.get("username", "")
        if not match or not name or "password" not in options or _REFERENCE.search(name) or "tokenauth" in options:
            why = 'must be PlainLoginModule or ScramLoginModule required username="NAME" password="..."; the name is no reference'
            self.keys.note(entry, REFUSED, why=why)
            return {}
        reference = self._secret("PASSWORD", options["password"], entry)
        self.keys.note(entry, CHANGED, self._at("security.username, password"), f"the password is read from {reference}")
        return {"username": name.replace('\\"', '"'), "password": reference}

    def _secret(self, suffix: str, value: str, entry: Entry) -> str:
        """A reference in place of a secret; one to the environment stays as it is."""
        match = _REFERENCE.fullmatch(value)
        provider = self.keys.top.get(f"config.providers.{match[1]}.class") if match else None
        if match and provider is not None and provider.value.endswith(".EnvVarConfigProvider"):
            variable = match[3]
        else:
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
        """The absolute path of a PEM file; "" when it is refused."""
        form = self._take(f"ssl.{kind}.type")
        name = form.value.upper() if form is not None else "JKS"
        path = (self.folder / Path(location.value).expanduser()).resolve()
        if name != "PEM":
            how = f'keytool -exportcert -rfc -keystore "{location.value}" -alias NAME > ca.pem'
            if kind == "keystore":
                how = f'openssl pkcs12 -in "{location.value}" -out client.pem (of JKS first keytool -importkeystore to PKCS12)'
            why = f"{name} stores cannot be read: {how}, then ssl.{kind}.type=PEM and ssl.{kind}.location"
            self.keys.note(location, REFUSED, why=why)
            return ""
        if not path.is_file():
            self.keys.note(location, REFUSED, why=f"no such file: {path}; a relative path counts from the folder of the property file")
            return ""
        return str(path)

    def _rest(self, entry: Entry) -> None:
        name = self._name(entry)
        for client in CLIENTS:
            name = name.removeprefix(client) if name.startswith((client + "ssl.", client + "sasl.", client + "security.")) else name
        rule = rule_of(name, CLUSTER_RULES)
        if rule is not None:
            self.keys.note(entry, rule.outcome, why=rule.why)
