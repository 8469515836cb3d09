"""Field types of mirror.yaml: each parses its text and knows how to describe itself."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from mirror_pipeline.config.name_pattern import NameMatch, match_problem
from mirror_pipeline.config.naming import (
    LEGAL_TOPIC,
    OTHERWISE,
    NameMap,
    NamingRule,
    same_to_kafka,
    template_problem,
    topic_name_problem,
)
from mirror_pipeline.config.secrets import REFERENCE
from mirror_pipeline.config.settings import FrozenMap
from mirror_pipeline.config.starts import EARLIEST, LATEST, StartAt, StartMap, StartOffsets
from mirror_pipeline.config.starts import Start as StartRule
from mirror_pipeline.units import DURATION_TEXT, SIZE_TEXT, TIME_TEXT, parse_duration, parse_size, parse_time

_HOST_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", re.ASCII)


def setting(default: Any, description: str, kind: str, *, unit: str = "", example: str = "", **limits: Any) -> Any:
    """A pydantic field that carries what the reference shows: type, unit, meaning, example."""
    extra: dict[str, Any] = {"x-type": kind}
    if unit:
        extra["x-unit"] = unit
    if example:
        extra["x-example"] = example
    return Field(default, description=description, json_schema_extra=extra, **limits)


def _size(value: object) -> int:
    return parse_size(value)


def _duration(value: object) -> float:
    seconds = parse_duration(value)
    if seconds <= 0:
        raise ValueError("must be greater than 0")
    return seconds


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("must be text; put it in quotes")


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        raise ValueError(f'must be a list; write ["{value}"]')
    if not isinstance(value, list):
        raise ValueError('must be a list of texts, e.g. ["orders", "payments\\\\..*"]')
    return [_text(item) for item in value]


def _secret(value: object) -> str:
    if isinstance(value, str) and REFERENCE.fullmatch(value):
        return value
    raise ValueError("a secret must not be written here; write ${env:NAME} or ${file:path}")


def _bootstrap(value: object) -> list[str]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise ValueError('must be "host:port,host:port" or a list of "host:port"')
    return [_address(_text(item).strip()) for item in items]


def _address(text: str) -> str:
    match = _HOST_PORT.fullmatch(text)
    if not match or not 0 < int(match.group(2)) < 65536:
        raise ValueError(f'"{text}" is not host:port, e.g. "broker1:9092"')
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        hint = '; for any text write ".*"' if text.startswith(("*", "?", "+")) else ""
        raise ValueError(f'regex "{text}" does not compile: {error.msg} at position {error.pos}{hint}') from None
    if not text:
        raise ValueError("an empty regex matches no topic")
    if "," in re.sub(r"\{[0-9]*,[0-9]*\}", "", text):
        raise ValueError(f'regex "{text}" holds a comma, which no topic name has; write one list item for each regex')
    return text


def _naming(value: object) -> NamingRule:
    if isinstance(value, NameMap | NameMatch):
        return value
    if not isinstance(value, dict):
        return _template(value)
    for keys in (("map",), ("match", "replace")):
        if set(keys) <= set(value) <= {*keys, "otherwise"}:
            rest = _template(value.get("otherwise", OTHERWISE))
            return _name_map(value["map"], rest) if keys == ("map",) else _name_match(_text(value["match"]), _text(value["replace"]), rest)
    raise ValueError("has the keys map and otherwise, or match, replace and otherwise (otherwise: prefix where it is left out)")


def _template(value: object) -> str:
    text = _text(value)
    problem = template_problem(text)
    if problem:
        raise ValueError(f'"{text}" {problem}')
    return text


def _name_map(value: object, otherwise: str) -> NameMap:
    if not isinstance(value, dict) or not value:
        raise ValueError("map must be a mapping of source topic to target topic, e.g. {orders: eu.orders}")
    names = {_text(topic): _text(name) for topic, name in value.items()}
    forms: dict[str, str] = {}
    for topic, name in names.items():
        for each in (topic, name):
            problem = topic_name_problem(each) or ("is the name of an internal topic" if each.startswith("__") else "")
            if problem:
                raise ValueError(f'map: topic name "{each}" {problem}')
        other = forms.setdefault(same_to_kafka(name), topic)
        if other != topic:
            raise ValueError(f'map: {other} and {topic} would both become "{name}" (. and _ are the same in metric names)')
    return NameMap(FrozenMap(names), otherwise)


def _name_match(match: str, replace: str, otherwise: str) -> NameMatch:
    plain = re.sub(r"\\[1-9]", "", replace)
    problem = match_problem(match, replace)
    if not problem and plain and not LEGAL_TOPIC.fullmatch(plain):
        wrong = next(c for c in plain if not LEGAL_TOPIC.fullmatch(c))
        problem = f'"{replace}" holds "{wrong}"; Kafka allows letters, digits, ".", "_" and "-"'
    if not problem and replace.startswith("__"):
        problem = f'"{replace}" makes names of internal topics'
    if problem:
        raise ValueError(problem)
    return NameMatch(match, replace, otherwise)


def _start(value: object) -> StartRule:
    if isinstance(value, StartMap):
        return value
    if not isinstance(value, dict):
        return _moment(value)
    rules = {_pattern(_text(topic)): at for topic, at in value.items() if topic != "otherwise"}
    if not rules:
        raise ValueError("must be earliest, latest, a time, or a mapping of topic to one of these, e.g. {orders: latest}")
    found = tuple((pattern, _offsets(pattern, at) if isinstance(at, dict) else _moment(at)) for pattern, at in rules.items())
    return StartMap(found, _moment(value.get("otherwise", EARLIEST)))


def _moment(value: object) -> str | datetime:
    text = _text(value)
    return text if text in (EARLIEST, LATEST) else parse_time(text)


def _offsets(topic: str, value: dict[object, object]) -> StartAt:
    pairs: list[tuple[int, int]] = []
    for partition, offset in value.items():
        numbers = [str(each) for each in (partition, offset)]
        if not all(re.fullmatch("[0-9]{1,18}", number) for number in numbers):
            raise ValueError(f'"{topic}": {{{partition}: {offset}}} is not partition: offset, two numbers from 0 on, e.g. {{0: 4711}}')
        pairs.append((int(numbers[0]), int(numbers[1])))
    if not pairs:
        raise ValueError(f'"{topic}" names no partition, e.g. {{0: 4711}}')
    return StartOffsets(tuple(sorted(pairs)))


def _options(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("must be a mapping of option to value")
    flat: dict[str, str] = {}
    for key, item in value.items():
        if isinstance(item, bool):
            flat[str(key)] = "true" if item else "false"
        elif isinstance(item, str | int | float):
            flat[str(key)] = str(item)
        else:
            raise ValueError(f"{key} must be text, a number, true or false")
    return flat


def _hours(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ValueError('must be a mapping such as {"08:00-18:00": 20MB}')
    for hours in value:
        if not re.fullmatch(HOURS_TEXT, str(hours)):
            raise ValueError(f'"{hours}" is not HH:MM-HH:MM, e.g. "08:00-18:00"')
    return {str(hours): parse_size(size) for hours, size in value.items()}


HOURS_TEXT = r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d"
_OPTIONS_SCHEMA = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}

Size = Annotated[
    int, BeforeValidator(_size), WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": SIZE_TEXT}]})
]
Duration = Annotated[float, BeforeValidator(_duration), WithJsonSchema({"type": "string", "pattern": DURATION_TEXT})]
Hours = Annotated[
    dict[str, int],
    BeforeValidator(_hours),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": f"^{HOURS_TEXT}$"},
            "additionalProperties": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": SIZE_TEXT}]},
        }
    ),
]
Text = Annotated[str, BeforeValidator(_text), WithJsonSchema({"type": "string"})]
# Apprise's schemes of which an address without a password holds no secret.
OPEN_SCHEMES = ("json", "jsons", "mailto", "mailtos")


def _channel(value: object) -> str:
    if isinstance(value, str):
        found = urlsplit(value)
        if REFERENCE.fullmatch(value) or (found.scheme in OPEN_SCHEMES and found.hostname and not found.password):
            return value
    shown = ", ".join(f"{scheme}://" for scheme in OPEN_SCHEMES)
    raise ValueError(f"write ${{env:NAME}} or ${{file:path}}; only {shown} without a password may be written out")


Channel = Annotated[str, BeforeValidator(_channel), WithJsonSchema({"type": "string"})]
Secret = Annotated[str, BeforeValidator(_secret), WithJsonSchema({"type": "string", "pattern": r"^\$\{(env|file):[^{}]+\}$"})]
Addresses = Annotated[
    list[str],
    BeforeValidator(_bootstrap),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
_TEMPLATE_SCHEMA = {"type": "string", "pattern": r"^(prefix|identity|.*\{topic\}.*)$"}
_RULE_SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {**properties, "otherwise": _TEMPLATE_SCHEMA},
        "required": list(properties),
        "additionalProperties": False,
    }
    for properties in (
        {"map": {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1}},
        {"match": {"type": "string", "minLength": 1}, "replace": {"type": "string", "minLength": 1}},
    )
]
Naming = Annotated[NamingRule, PlainValidator(_naming), WithJsonSchema({"anyOf": [_TEMPLATE_SCHEMA, *_RULE_SCHEMAS]})]
_MOMENT_SCHEMAS: list[dict[str, Any]] = [{"enum": [EARLIEST, LATEST]}, {"type": "string", "pattern": TIME_TEXT}]
_OFFSETS_SCHEMA = {
    "type": "object", "propertyNames": {"pattern": "^[0-9]+$"}, "additionalProperties": {"type": "integer", "minimum": 0},
    "minProperties": 1,
}  # fmt: skip
_STARTS_SCHEMA = {
    "type": "object", "properties": {"otherwise": {"anyOf": _MOMENT_SCHEMAS}},
    "additionalProperties": {"anyOf": [*_MOMENT_SCHEMAS, _OFFSETS_SCHEMA]},
}  # fmt: skip
Start = Annotated[StartRule, PlainValidator(_start), WithJsonSchema({"anyOf": [*_MOMENT_SCHEMAS, _STARTS_SCHEMA]})]
Options = Annotated[dict[str, str], BeforeValidator(_options), WithJsonSchema(_OPTIONS_SCHEMA)]
Pattern = Annotated[str, BeforeValidator(lambda value: _pattern(_text(value))), WithJsonSchema({"type": "string", "minLength": 1})]


def _list_first(value: object) -> list[str]:
    return _texts(value) if not isinstance(value, list) else value


Patterns = Annotated[
    list[Pattern], BeforeValidator(_list_first), WithJsonSchema({"type": "array", "items": {"type": "string", "minLength": 1}})
]
