"""GraphQL calls to Dagster's web server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

TIMEOUT_SECONDS = 30.0
RELOAD = """
mutation Reload($name: String!) {
  reloadRepositoryLocation(repositoryLocationName: $name) {
    __typename
    ... on WorkspaceLocationEntry { locationOrLoadError { __typename ... on PythonError { message } } }
    ... on PythonError { message }
  }
}
"""
LOCATIONS = """
{ workspaceOrError { ... on Workspace { locationEntries { name locationOrLoadError { __typename ... on PythonError { message } } } } } }
"""


class GraphQLError(Exception):
    """The web server does not answer, or the answer is an error."""


def call(
    url: str, query: str, variables: Mapping[str, Any] | None = None, *, token: str | None = None, timeout: float = TIMEOUT_SECONDS
) -> dict[str, Any]:
    """POST one query to ``<url>/graphql``, with the token if there is one; return the ``data`` of the answer.

    Raises:
        GraphQLError: no answer, or an answer with errors.
    """
    if not url.startswith(("http://", "https://")):
        raise GraphQLError(f"{url!r} is not the address of a web server")
    body = json.dumps({"query": query, "variables": dict(variables or {})}).encode()
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(f"{url.rstrip('/')}/graphql", body, headers)  # noqa: S310 - scheme checked
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310 - scheme checked
            answer = json.load(response)
    except (OSError, ValueError) as error:
        raise GraphQLError(f"{url}: {error}") from error
    if answer.get("errors"):
        raise GraphQLError(f"{url}: {answer['errors'][0].get('message')}")
    data = answer.get("data")
    if not isinstance(data, dict):
        raise GraphQLError(f"{url}: an answer without data")
    return data


def reload_location(url: str, name: str, *, token: str | None = None) -> None:
    """Reload a code location.

    Raises:
        GraphQLError: the web server does not answer, or the location does not load.
    """
    answer = call(url, RELOAD, {"name": name}, token=token)["reloadRepositoryLocation"]
    if answer["__typename"] != "WorkspaceLocationEntry":
        raise GraphQLError(str(answer.get("message") or answer["__typename"]))
    entry = answer.get("locationOrLoadError") or {}
    if entry.get("__typename") == "PythonError":
        raise GraphQLError(_first_line(entry["message"]))


def location_problem(url: str, name: str, *, token: str | None = None) -> str | None:
    """Why a code location is not loaded, "" when it is, None while it is loading.

    Raises:
        GraphQLError: the web server does not answer.
    """
    workspace = call(url, LOCATIONS, token=token)["workspaceOrError"]
    for entry in workspace.get("locationEntries", []):
        if entry["name"] == name and entry["locationOrLoadError"]:
            state = entry["locationOrLoadError"]
            return _first_line(state["message"]) if state["__typename"] == "PythonError" else ""
    return None


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "unknown error")
