"""YAML that remembers the line of every key, so that errors can point at it.

Unlike YAML 1.1 only ``true``/``false`` are booleans and times stay text: an alias ``no`` and a time without
zone must not turn into something else before they are checked.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

Path = tuple[str | int, ...]
_CORE = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?", "-+0123456789"),
    ("merge", r"<<", "<"),
)


class _Loader(yaml.SafeLoader):
    """SafeLoader with the core schema's scalars only."""

    yaml_implicit_resolvers: dict[str, Any] = {}


for _name, _pattern, _first in _CORE:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), ["" if c == "\0" else c for c in _first])


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(str(loader.construct_scalar(node)))  # no octal: 010 is ten


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


class Document:
    """The data of a YAML file with the line of each key and list item, and what is wrong with its form."""

    def __init__(self, text: str) -> None:
        self.data: Any = None
        self.lines: dict[Path, int] = {(): 1}
        self.problems: list[tuple[Path, int, str]] = []
        try:
            self._read(text)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self.problems.append(((), mark.line + 1 if mark else 1, f"not valid YAML: {_harmless(error)}"))
        except yaml.YAMLError:
            self.problems.append(((), 1, "not valid YAML: it contains an invalid character"))

    def line(self, path: Path) -> int:
        """The line of a path, or of its nearest ancestor that is in the file."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]

    def _read(self, text: str) -> None:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is not None:
                self._visit(node, ())
                self.data = loader.construct_document(node)
        finally:
            loader.dispose()

    def _visit(self, node: yaml.Node, path: Path, depth: int = 0) -> None:
        if depth > 32:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=node.start_mark)
        if isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, path, depth)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.lines[(*path, index)] = item.start_mark.line + 1
                self._visit(item, (*path, index), depth + 1)

    def _visit_mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> None:
        seen: dict[Hashable, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == "tag:yaml.org,2002:merge":
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    self._visit(merged, path, depth + 1)
                continue
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            if name in seen:
                self.problems.append(((*path, name), line, f"duplicate key; first defined in line {seen[name]}"))
            seen[name] = line
            self.lines[(*path, name)] = line
            self._visit(value, (*path, name), depth + 1)


def _harmless(error: yaml.MarkedYAMLError) -> str:
    """What is wrong, without words of the file: the line may hold a password."""
    if isinstance(error, yaml.constructor.ConstructorError):
        return "a tag or key of this kind is not supported; put text that starts with ! in quotes"
    if isinstance(error, yaml.composer.ComposerError):
        return "an anchor or alias does not fit; put text that starts with * or & in quotes"
    problem = error.problem or "unreadable"
    if "could not find expected ':'" in problem:
        return 'expected "key: value"; is a colon or a quote missing in the line before?'
    if "cannot start any token" in problem:
        return "a character that cannot start a value; put the value in quotes (and use spaces, not tabs, to indent)"
    return re.sub(r"'[^']{4,}'|\"[^\"]{4,}\"", "...", problem)
