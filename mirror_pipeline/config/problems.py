"""What is wrong with a mirror.yaml, as one line each: file, line, key, what to write instead."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mirror_pipeline.config.models import FileModel
from mirror_pipeline.config.settings import nearest
from mirror_pipeline.config.yaml_lines import Document, Path

_FORMS = {
    "model_type": "must be a block of keys",
    "model_attributes_type": "must be a block of keys",
    "dict_type": "must be a block of keys",
    "list_type": "must be a list; start each item with a dash",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "string_type": "must be text; put it in quotes",
}
_LIMITS = {
    "greater_than_equal": ("ge", "must be at least"),
    "less_than_equal": ("le", "must be at most"),
    "greater_than": ("gt", "must be more than"),
}


def dotted(path: Path) -> str:
    """``mirrors[0].topics.include[1]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


class Problems:
    """Collects problems of one file and words them in the order of its lines."""

    def __init__(self, shown: str, document: Document) -> None:
        self._shown = shown
        self._document = document
        self._found: dict[tuple[int, str, str], None] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, path: Path, message: str, line: int | None = None) -> None:
        """Note a problem of the key at ``path``."""
        self._found[(line or self._document.line(path), dotted(path), message)] = None

    def add_validation(self, error: ValidationError, base: Path = ()) -> None:
        """Note everything pydantic found; values are never quoted from it."""
        wordings = [((*base, *item["loc"]), item) for item in error.errors(include_url=False)]
        misspelt = {(*path[:-1], _meant(path)) for path, item in wordings if item["type"] == "extra_forbidden"}
        for path, item in wordings:
            if item["type"] != "missing" or path not in misspelt:  # one message for one mistake
                self.add(path, _wording(item, path))

    def where(self, path: Path) -> str:
        """``mirror.yaml:12: clusters.east.security.password``."""
        return f"{self._shown}:{self._document.line(path)}: {dotted(path)}"

    def text(self) -> str:
        """One line for each problem."""
        return "\n".join(f"{self._shown}:{line}: {key + ': ' if key else ''}{message}" for line, key, message in sorted(self._found))


def _wording(item: ErrorDetails, path: Path) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key, {nearest(str(path[-1]), _keys_beside(path))}"
    if kind == "missing":
        return "is missing"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return _wrong_choice(item["input"], str(context["expected"]))
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return f"{words} {context[name]:,}".replace(",", " ")
    if kind == "too_short":
        return "must have at least one entry"
    return _FORMS.get(kind, item["msg"])


def _meant(path: Path) -> str:
    suggestion = nearest(str(path[-1]), _keys_beside(path))
    return suggestion.split('"')[1] if suggestion.startswith("did") else ""


def _wrong_choice(value: object, expected: str) -> str:
    choices = [word.strip(" '") for word in expected.replace(" or ", ",").split(",")]
    if not isinstance(value, str):
        return f"must be one of {', '.join(choices)}"
    near = nearest(value, choices)
    return f'"{value}" is not one of {", ".join(choices)}' + (f"; {near}" if near.startswith("did") else "")


def _keys_beside(path: Path) -> list[str]:
    model: type[BaseModel] | None = FileModel
    parts = iter(path[:-1])
    for part in parts:
        field = model.model_fields.get(str(part)) if model else None
        if field is None:
            return []
        annotation: Any = field.annotation
        if typing.get_origin(annotation) in (dict, list):
            next(parts, None)
        model = _model_in(annotation)
    return list(model.model_fields) if model else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _model_in(part))), None)


def part_of(data: object, path: Path) -> Any:
    """What lies at ``path`` in parsed YAML, or None."""
    for part in path:
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data
