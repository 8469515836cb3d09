"""JSON Schema of mirror.yaml, for editors."""

from __future__ import annotations

from typing import Any

from mirror_pipeline.config.models import FileModel


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of mirror.yaml; committed as docs/mirror.schema.json.

    Checks across keys, e.g. that an alias exists, are made by ``load_config`` only.
    """
    schema = _tidy(FileModel.model_json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "mirror.yaml"}


def _tidy(node: Any) -> Any:
    """Drop what editors do not need: generated titles, defaults of whole sections, our own notes."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {}
    for key, value in node.items():
        generated = key == "title" and isinstance(value, str)
        section_default = key == "default" and (isinstance(value, dict) or value is None)
        if not generated and not section_default and not key.startswith("x-"):
            kept[key] = _tidy(value)
    return kept
