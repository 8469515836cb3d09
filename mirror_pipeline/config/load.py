"""Reads mirror.yaml: YAML with lines, pydantic, checks across keys, then frozen facts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ValidationError

from mirror_pipeline.config import checks
from mirror_pipeline.config.models import (
    BufferModel,
    ClusterModel,
    EngineModel,
    FileModel,
    MirrorModel,
    PageUserModel,
    SecurityModel,
)
from mirror_pipeline.config.problems import Problems, part_of
from mirror_pipeline.config.secrets import REFERENCE, SecretRef, secret_ref, substitute
from mirror_pipeline.config.settings import (
    BATCHES_IN_BUFFER,
    BufferConfig,
    ClusterSettings,
    Config,
    EngineConfig,
    FrozenMap,
    GroupSelection,
    MirrorConfig,
    NotifyConfig,
    PageConfig,
    PageUser,
    Security,
    TopicAcls,
    TopicConfigs,
    TopicSelection,
)
from mirror_pipeline.config.yaml_lines import Document
from mirror_pipeline.config.yaml_lines import Path as KeyPath
from mirror_pipeline.errors import ConfigError
from mirror_pipeline.host import expanded

DEFAULT_CONFIG = "mirror.yaml"
M = TypeVar("M", bound=BaseModel)
F = TypeVar("F")


def load_config(path: str | Path = DEFAULT_CONFIG, *, text: str | None = None) -> Config:
    """Read and check a mirror.yaml. Nothing is contacted; secrets stay references.

    Args:
        path: the file; relative paths inside it count from its folder.
        text: its content, if it is not to be read.

    Raises:
        ConfigError: with one line for each problem, ``file:line: key: what to write instead``.
    """
    shown = str(path)
    document = Document(_read(Path(path), shown) if text is None else text)
    problems = Problems(shown, document)
    for key, line, message in document.problems:
        problems.add(key, message, line)
    if document.data is None and not problems:
        raise ConfigError(f"{shown}: the file is empty", hint="`mirror init` writes one to start from")
    folder = Path(path).absolute().parent
    model = _validate(document.data, folder, problems) if document.data is not None else None
    if problems or model is None:
        raise ConfigError(problems.text())
    return _Facts(model, folder, problems).config(Path(path).absolute())


def _read(path: Path, shown: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{shown}: no such file", hint="`mirror init` writes one, `-c FILE` names another") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{shown}: is not UTF-8 text", hint="save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{shown}: {error.strerror}", hint="`-c FILE` names another file") from None


def _validate(data: Any, folder: Path, problems: Problems) -> FileModel | None:
    _substitute(data, problems)
    checks.check_references(data, problems)
    model = None
    try:
        model = FileModel.model_validate(data)
    except ValidationError as error:
        problems.add_validation(error)
    _check_sections(data, folder, problems)
    return model


def _substitute(data: Any, problems: Problems) -> None:
    """Put environment values into addresses, in place, so that they are checked like written ones."""
    places: list[tuple[Any, Any, KeyPath]] = [(part_of(data, ("buffer",)), "uri", ("buffer", "uri"))]
    clusters = part_of(data, ("clusters",))
    for alias, cluster in clusters.items() if isinstance(clusters, dict) else ():
        path: KeyPath = ("clusters", alias, "bootstrap_servers")
        servers = part_of(cluster, ("bootstrap_servers",))
        places.append((cluster, "bootstrap_servers", path))
        places += [(servers, index, (*path, index)) for index in range(len(servers))] if isinstance(servers, list) else []
    for holder, key, path in places:
        value = part_of(holder, (key,))
        if isinstance(value, str):
            try:
                holder[key] = substitute(value)
            except ValueError as error:
                problems.add(path, str(error))
                holder[key] = "unset:1"  # one message is enough


def _check_sections(data: Any, folder: Path, problems: Problems) -> None:
    """Cross-checks of every section that is well formed, even when others are not: all errors at once."""
    clusters = part_of(data, ("clusters",))
    clusters = clusters if isinstance(clusters, dict) else {}
    for alias, raw in clusters.items():
        checks.check_name(("clusters", alias), alias, "cluster alias", problems)
        cluster = _try(ClusterModel, raw)
        if cluster is not None:
            checks.check_cluster(alias, cluster, folder, problems)
    mirrors = part_of(data, ("mirrors",))
    names: dict[int, str] = {}
    for index, raw in enumerate(mirrors if isinstance(mirrors, list) else ()):
        checks.check_mirror(index, raw, [str(alias) for alias in clusters], problems)
        name = part_of(raw, ("name",))
        if isinstance(name, str):
            names[index] = name
    checks.check_mirror_names(names, problems)
    checks.check_reverses(mirrors, problems)
    checks.check_writers(mirrors, problems)
    checks.check_follow_trim(mirrors, problems)
    buffer = _try(BufferModel, part_of(data, ("buffer",)) or {})
    if buffer is not None:
        checks.check_buffer(buffer, problems)
        checks.check_batches(data, buffer.max_bytes, problems)
    checks.check_options(part_of(data, ("engine", "spark")), ("engine", "spark"), problems)


def _try(model: type[M], raw: Any) -> M | None:
    try:
        return model.model_validate(raw)
    except ValidationError:
        return None


def _by_name(kind: type[F], section: BaseModel, **given: Any) -> F:
    """A section's facts: each field of ``kind`` from the key of the same name, but those that are ``given``."""
    names = [field.name for field in dataclasses.fields(kind) if field.name not in given]  # type: ignore[arg-type]
    build: Callable[..., F] = kind
    return build(**{name: _frozen(getattr(section, name)) for name in names}, **given)


def _frozen(value: Any) -> Any:
    return FrozenMap(value) if isinstance(value, Mapping) else tuple(value) if isinstance(value, list) else value


class _Facts:
    """Turns a checked file into facts."""

    def __init__(self, model: FileModel, folder: Path, problems: Problems) -> None:
        self._model = model
        self._folder = folder
        self._problems = problems

    def config(self, path: Path) -> Config:
        notify, page = self._model.notify, self._model.page
        return Config(
            clusters={alias: self._cluster(alias, cluster) for alias, cluster in self._model.clusters.items()},
            mirrors=[self._mirror(mirror) for mirror in self._model.mirrors],
            buffer=self._buffer(self._model.buffer),
            path=path,
            notify=NotifyConfig(tuple(self._text(("notify", "urls", n), url) for n, url in enumerate(notify.urls)), notify.after),
            page=PageConfig(tuple(self._user(number, user) for number, user in enumerate(page.users)), page.user_header or ""),
        )

    def _user(self, number: int, user: PageUserModel) -> PageUser:
        token = self._secret(("page", "users", number, "token"), user.token) if user.token else None
        return PageUser(user.name, user.role, token)

    def _secret(self, path: KeyPath, text: str) -> SecretRef:
        return secret_ref(text, self._folder, self._problems.where(path))

    def _text(self, path: KeyPath, text: str) -> str | SecretRef:
        """What may be written out, or be a reference."""
        return self._secret(path, text) if REFERENCE.fullmatch(text) else text

    def _cluster(self, alias: str, cluster: ClusterModel) -> ClusterSettings:
        client = {key: self._text(("clusters", alias, "client", key), value) for key, value in cluster.client.items()}
        return ClusterSettings(alias, tuple(cluster.bootstrap_servers), self._security(alias, cluster.security), FrozenMap(client))

    def _security(self, alias: str, security: SecurityModel) -> Security:
        def secret(key: str, text: str | None) -> SecretRef | None:
            return self._secret(("clusters", alias, "security", key), text) if text else None

        return _by_name(
            Security,
            security,
            username=self._text(("clusters", alias, "security", "username"), security.username) if security.username else None,
            password=secret("password", security.password),
            ca_file=self._file(security.ca_file),
            cert_file=self._file(security.cert_file),
            key_file=self._file(security.key_file),
            key_password=secret("key_password", security.key_password),
        )

    def _file(self, name: str | None) -> str | None:
        return None if name is None else str(self._folder / expanded(name))

    def _mirror(self, mirror: MirrorModel) -> MirrorConfig:
        configs, acls = _by_name(TopicConfigs, mirror.topics.configs), _by_name(TopicAcls, mirror.topics.acls)
        return _by_name(
            MirrorConfig,
            mirror,
            topics=_by_name(TopicSelection, mirror.topics, configs=configs, acls=acls),
            groups=None if mirror.groups is None else _by_name(GroupSelection, mirror.groups),
            engine=self._engine(mirror.engine),
        )

    def _engine(self, override: EngineModel | None) -> EngineConfig:
        values: dict[str, Any] = {}
        for field in dataclasses.fields(EngineConfig):
            block = override if override is not None and field.name in override.model_fields_set else self._model.engine
            values[field.name] = _frozen(getattr(block, field.name))
        if not any(block is not None and "micro_batch_bytes" in block.model_fields_set for block in (override, self._model.engine)):
            values["micro_batch_bytes"] = min(values["micro_batch_bytes"], self._model.buffer.max_bytes // BATCHES_IN_BUFFER)
        return EngineConfig(**values)

    def _buffer(self, buffer: BufferModel) -> BufferConfig:
        plain = unquote(urlsplit(buffer.uri).path) if buffer.uri.startswith("file://") else buffer.uri
        remote = buffer.uri.startswith("s3://")
        return _by_name(
            BufferConfig,
            buffer,
            uri=buffer.uri.rstrip("/") if remote else str(self._folder / expanded(plain)),
            retention=int(buffer.retention),
            archive=None if buffer.archive is None else int(buffer.archive),
        )
