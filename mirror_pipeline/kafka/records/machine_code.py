"""Python compiled to machine code: by numba once for a machine, loaded by LLVM alone in every process after that.

Loading kept code through numba takes a third of a second of CPU and 65 MB more than LLVM needs for it, most of it for the
types of arrays and numbers that are not needed then. So compiled code must be self-contained: it must not call numba.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

import llvmlite.binding as llvm

from mirror_pipeline.errors import UsageError
from mirror_pipeline.files import Forgeable, private_folder, read_own, refuse_forgeable, replace_file
from mirror_pipeline.host import cache_folder, temporary_cache

_ENTRY = "entry"
_BESIDE = "__pycache__"
_DIGEST_BYTES = sha256().digest_size
_CPU, _FEATURES = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
_log = logging.getLogger(__name__)
_loaded: list[llvm.ExecutionEngine] = []  # code is gone with its engine

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


def machine_code(module: str, function: str) -> int:
    """The address of a compiled function of pointers and numbers, which neither raises nor makes objects.

    Kept code is found beside the module or, where that cannot be written, in :func:`~mirror_pipeline.host.cache_folder`
    or :func:`~mirror_pipeline.host.temporary_cache`;
    where there is none yet, a damaged one, or one that another user could have written, it is compiled, which takes seconds.
    Constants that the module imports from others count as fixed forever.

    Args:
        module: holds the function and, as ``SIGNATURE``, its numba signature; it and numba are imported only to compile.
        function: its name.

    Raises:
        ValueError: the code would not stand alone.
        ImportError: numba cannot be imported, and no code is kept.
        RuntimeError: LLVM refuses.
        numba.core.errors.NumbaError: numba cannot compile it.
    """
    source = _source(module)
    name = f"{source.stem}.{function}-{_fingerprint(source)}.o"
    places = _places(source)
    code = _kept(places, name)
    if code is None:
        code = _compile(module, function)
        _keep(places, name, code)
    return _load(code)


def _places(source: Path) -> list[Path]:
    """Where code may be kept. The first two may be parts of an image that was built on another processor."""
    caches = [cache_folder()]
    with suppress(UsageError):
        caches.append(temporary_cache())
    return [source.parent / _BESIDE, *(cache / "machine-code" for cache in dict.fromkeys(caches))]


def _source(module: str) -> Path:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(f"no module {module} to compile")
    return Path(spec.origin)


def _fingerprint(source: Path) -> str:
    """Of all that decides what the code looks like, and where it can run."""
    known = sha256(source.read_bytes() + Path(__file__).read_bytes())
    versions = [metadata.version(package) for package in ("numba", "llvmlite")]
    for fact in (*versions, llvm.get_default_triple(), _CPU, _FEATURES):
        known.update(b"\0" + fact.encode())
    return known.hexdigest()[:24]


def _kept(places: Sequence[Path], name: str) -> bytes | None:
    for place in places:
        try:
            data = read_own(place / name)
        except Forgeable as why:
            _log.warning("machine code kept in %s is not loaded: %s", place / name, why)
            continue
        except OSError:
            continue
        if _digest(name, data[_DIGEST_BYTES:]) == data[:_DIGEST_BYTES]:
            return data[_DIGEST_BYTES:]
        _log.warning("machine code kept in %s is damaged", place / name)
    return None


def _keep(places: Sequence[Path], name: str, code: bytes) -> None:
    for place in places:
        try:
            if place.name == _BESIDE:
                place.mkdir(mode=0o755, exist_ok=True)
            else:
                private_folder(place)
            refuse_forgeable(place)
            replace_file(place / name, _digest(name, code) + code, mode=0o644)  # readable for every user of the package
        except OSError as error:
            _log.info("machine code cannot be kept in %s: %s", place, error)
        else:
            return
    _log.warning("machine code cannot be kept in %s: every process compiles it again", " or ".join(map(str, places)))


def _digest(name: str, code: bytes) -> bytes:
    """Of the code and of what it is: one of our own files under the name of another is none."""
    return sha256(name.encode() + b"\0" + code).digest()


def _machine() -> llvm.TargetMachine:
    return llvm.Target.from_default_triple().create_target_machine(cpu=_CPU, features=_FEATURES, opt=3, jit=True)


def _compile(module: str, function: str) -> bytes:
    """Object code of the function and of what it calls."""
    import numba

    kernel = import_module(module)
    compiled = numba.cfunc(kernel.SIGNATURE)(getattr(kernel, function))
    code = llvm.parse_assembly(compiled.inspect_llvm())
    for part in (*code.functions, *code.global_variables):
        if not part.is_declaration and part.name != compiled.native_name:
            part.linkage = "internal"
    code.get_function(compiled.native_name).name = _ENTRY
    machine = _machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(code, builder)  # removes numba's error paths, which nothing calls any more
    parts = (*code.functions, *code.global_variables)
    if missing := [part.name for part in parts if part.is_declaration and not part.name.startswith("llvm.")]:
        raise ValueError(f"{module}.{function} would call {', '.join(missing)}")
    return bytes(machine.emit_object(code))


def _load(code: bytes) -> int:
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _loaded.append(engine)
    return int(engine.get_function_address(_ENTRY))
