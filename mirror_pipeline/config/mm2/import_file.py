"""Reads a property file of MirrorMaker 2 and writes a mirror.yaml beside it, or says why not."""

from __future__ import annotations

import os
from pathlib import Path

from mirror_pipeline.config.load import load_config
from mirror_pipeline.config.mm2.convert import Converted, convert
from mirror_pipeline.config.naming import template_problem
from mirror_pipeline.errors import ConfigError, UsageError
from mirror_pipeline.files import replace_file
from mirror_pipeline.reports import ImportReport


def import_mm2(properties: Path, output: Path, *, force: bool = False, without_refused: bool = False, naming: str = "") -> ImportReport:
    """Write the mirror.yaml that does what a property file of MirrorMaker 2 (dedicated mode) does.

    The new file is loaded before it takes its name. Nothing is contacted.

    Args:
        properties: the file that ``connect-mirror-maker.sh`` is started with.
        output: where mirror.yaml is written.
        force: replace ``output`` if it exists.
        without_refused: write it although keys are refused; they are left out, and listed at the top of the file.
        naming: ``prefix``, ``identity`` or a template, for names that a Java class of the file's decides.

    Returns:
        The outcome of every key; ``path`` is None when keys are refused and nothing was written.

    Raises:
        ConfigError: the property file cannot be read, contradicts itself, or copies nothing; or what it describes is no valid
            mirror.yaml. One line for each problem.
        UsageError: ``output`` exists or cannot be written; or ``naming`` is neither given nor known.
    """
    problem = template_problem(naming) if naming else ""
    if problem:
        raise UsageError(f"--naming {naming} {problem}")
    shown = str(properties)
    converted = convert(_read(properties), shown, properties.absolute().parent, naming)
    report = ImportReport(shown, None, converted.mirrors, converted.keys, converted.secrets)
    if report.refused and not without_refused:
        return report
    policy = next((key for key in report.refused if key.key.endswith("replication.policy.class")), None)
    if policy is not None:  # the one key that must not be left out: the default would make other topics
        raise UsageError(f"{shown}:{policy.line}: {policy.key}: {policy.why}", hint="plan shows the names before anything is copied")
    _write(converted, output, force)
    return ImportReport(shown, str(output), converted.mirrors, converted.keys, converted.secrets)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("latin-1")  # as Java reads property files: any byte is a character
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name the file that connect-mirror-maker.sh is started with") from None


def _write(converted: Converted, output: Path, force: bool) -> None:
    if output.exists() and not force:
        raise _exists(output)
    draft = output.with_name(f".{output.name}.{os.getpid()}.draft")
    try:
        replace_file(draft, converted.text, mode=0o644)
        _check(draft, output)
        if force:
            draft.replace(output)
        else:
            os.link(draft, output)  # unlike a rename this fails if the file was made in between
    except FileExistsError:
        raise _exists(output) from None
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}", hint="choose another path with -o FILE") from None
    finally:
        draft.unlink(missing_ok=True)


def _exists(output: Path) -> UsageError:
    return UsageError(f"{output} already exists and was not changed", hint="--force replaces it; -o FILE writes another file")


def _check(draft: Path, output: Path) -> None:
    try:
        load_config(draft)
    except ConfigError as error:
        message = error.message.replace(str(draft), f"(new) {output}")
        raise ConfigError(message, hint="nothing was written; correct the property file, or the keys that were left out") from None
