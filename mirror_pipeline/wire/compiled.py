"""Python compiled to machine code (numba), for loops over records that nothing else takes off our hands."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

types: Any = numba.types
_log = logging.getLogger(__name__)
Compiled = TypeVar("Compiled", bound=Callable[..., Any])


def compiled(signature: object) -> Callable[[Compiled], Compiled]:
    """Compile a function when its module is imported, for these types; it runs without the interpreter's lock.

    The machine code is kept for the next process, beside the module or in the user's cache folder: compiling takes
    seconds, loading a fraction of one. Where it can neither be kept nor, being damaged, be loaded, each process compiles.
    """

    def compile_now(function: Compiled) -> Compiled:
        try:
            return cast(Compiled, numba.njit(signature, nogil=True, cache=True)(function))
        except Exception as problem:  # noqa: BLE001 - whatever is wrong with a cache, there is a way without it
            _log.warning("no kept machine code for %s, compiling it: %s", function.__qualname__, problem)
            return cast(Compiled, numba.njit(signature, nogil=True)(function))

    return compile_now
