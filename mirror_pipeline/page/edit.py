"""Changes mirror.yaml as a form asks: comments, order and every key that the form does not have stay; the version before is kept."""

from __future__ import annotations

import io
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.util import load_yaml_guess_indent

from mirror_pipeline.config import Config, load_config
from mirror_pipeline.errors import UsageError
from mirror_pipeline.files import replace_file

VERSIONS = "versions"
"""Folder beside the mirrors' other files that holds what mirror.yaml was before each change."""
_WIDE = 4096


@dataclass(frozen=True, slots=True)
class MirrorForm:
    """The keys of a mirror that a form has; lists have one entry a line, and empty text leaves a key to its default."""

    name: str
    source: str
    target: str
    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    naming: str = ""
    start: str = ""
    on_loss: str = ""
    groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, str]) -> MirrorForm:
        """From the fields of a form."""
        text = {key: given.get(key, "").strip() for key in ("name", "source", "target", "naming", "start", "on_loss")}
        lists = {key: _lines(given.get(key, "")) for key in ("include", "exclude", "groups")}
        return cls(**text, **lists)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class ConfigText:
    """The file as it was read; ``mark`` tells whether it is still the same."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> ConfigText:
        """Raises OSError."""
        return cls(path, path.read_text(encoding="utf-8-sig"))

    @property
    def mark(self) -> str:
        """Of the content."""
        return sha256(self.text.encode()).hexdigest()[:16]

    def form(self, name: str) -> MirrorForm:
        """What the file says of a mirror. Raises UsageError where it has none of that name, or one that the form cannot show."""
        block = _block(self._data()[1], name)
        if block is None:
            raise UsageError(f"{self.path} has no mirror {name}")
        topics, groups = block.get("topics") or {}, block.get("groups") or {}
        shown = {key: block.get(key, "") for key in ("naming", "start")}
        if odd := [key for key, value in shown.items() if not isinstance(value, str | datetime)]:
            raise UsageError(f"{odd[0]} of mirror {name} is a mapping, which the form does not have", hint="change it in the file")
        return MirrorForm(
            name, str(block.get("source", "")), str(block.get("target", "")), tuple(topics.get("include") or ()),
            tuple(topics.get("exclude") or ()), str(shown["naming"]), _time(shown["start"]), str(block.get("on_loss", "")),
            tuple(groups.get("include") or ()),
        )  # fmt: skip

    def with_mirror(self, form: MirrorForm, *, new: bool) -> ConfigText:
        """The file with a mirror added or changed. Raises UsageError where that cannot be done, ConfigError where it would not load."""
        yaml, data = self._data()
        mirrors = data.get("mirrors")
        block = _block(data, form.name)
        if not isinstance(mirrors, CommentedSeq) or (block is None) != new:
            raise UsageError(f"{self.path} has {'already a' if new else 'no'} mirror {form.name}")
        if block is None:
            block = CommentedMap()
            mirrors.append(block)
        for key in ("name", "source", "target"):
            block[key] = getattr(form, key)
        topics = block.setdefault("topics", CommentedMap())
        _set_list(topics, "include", form.include, keep_empty=True)
        _set_list(topics, "exclude", form.exclude)
        for key in ("naming", "start", "on_loss"):
            _set(block, key, getattr(form, key))
        if form.groups:
            _set_list(block.setdefault("groups", CommentedMap()), "include", form.groups)
        elif block.get("groups") is not None:
            del block["groups"]
        out = io.StringIO()
        yaml.dump(data, out)
        changed = ConfigText(self.path, out.getvalue())
        changed.load()
        return changed

    def load(self) -> Config:
        """What the text means. Raises ConfigError with a line for each problem."""
        return load_config(self.path, text=self.text)

    def save(self, before: ConfigText) -> Path:
        """Replace the file, which must still be as it was ``before``; gives the path of the version that is kept.

        Raises:
            UsageError: the file has changed meanwhile, or cannot be written.
        """
        path = self.path.resolve()
        try:
            if ConfigText.read(path).mark != before.mark:
                raise UsageError(f"{self.path} was changed by somebody else meanwhile", hint="open the form again")
            kept = before.load().state_folder / VERSIONS
            kept.mkdir(parents=True, exist_ok=True, mode=0o700)
            version = kept / f"{path.name}.{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
            mode = stat.S_IMODE(path.stat().st_mode)
            replace_file(version, before.text, durable=True)
            replace_file(path, self.text, durable=True, mode=mode)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}", hint="change the file where it comes from") from error
        return version

    def _data(self) -> tuple[YAML, Any]:
        _, indent, offset = load_yaml_guess_indent(self.text)
        yaml = YAML()
        yaml.preserve_quotes = True
        yaml.width = _WIDE
        if indent:
            yaml.indent(mapping=max(2, indent - (offset or 0)), sequence=indent, offset=offset or 0)
        return yaml, yaml.load(self.text)


def _block(data: Any, name: str) -> Any:
    return next((block for block in data.get("mirrors") or () if block.get("name") == name), None)


def _set(block: Any, key: str, value: str) -> None:
    """Nothing that says the same already is touched: its quotes and comments stay."""
    if not value:
        block.pop(key, None)
    elif _time(block.get(key, "")) != value:
        block[key] = value


def _set_list(block: Any, key: str, values: Sequence[str], *, keep_empty: bool = False) -> None:
    if not values and not keep_empty:
        block.pop(key, None)
    elif tuple(block.get(key) or ()) != tuple(values):
        block[key] = CommentedSeq(values)
        block[key].fa.set_flow_style()


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _time(value: Any) -> str:
    """YAML reads a time that is not quoted as one."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if value.tzinfo else value.strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(value)
