"""The floor plan: which room may import which, which names may stand twice."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mirror_pipeline"
LEVELS: tuple[tuple[str, ...], ...] = (
    ("cli",),
    ("orchestration",),
    ("page",),
    ("resources", "local", "exporter"),
    ("mirror",),
    ("features",),
    ("operations",),
    ("engine", "verify"),
    ("flow",),
    ("execution", "topics"),
    ("kafka", "buffer"),
    ("config",),
    ("children", "crash_points", "errors", "files", "halts", "host", "lags", "model", "reports", "text", "units", "verdicts"),
)
"""From the top. A file imports from its own room and from lower levels; rooms of one level do not know each other."""
LOWEST = len(LEVELS) - 1
"""Files of the lowest level may know each other, as long as no circle comes of it."""
LEVEL = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
TWICE = {
    "backfill": "what it does, and its job in Dagster",
    "checks": "of mirror.yaml, and of Dagster's assets",
    "errors": "the tree, what a buffer's place raises, and how the command shows them",
    "failover": "the verb, its commands, its jobs in Dagster",
    "files": "of any kind, and of a Delta table",
    "halts": "how a halt is made, and which topics are halted",
    "jobs": "of a verification, and of the command",
    "lanes": "which topics a lane copies, and running lanes",
    "live": "the demo's live part, and records that keep coming",
    "load": "of mirror.yaml, and of a mirror for a command",
    "loop": "read loop and write loop",
    "messages": "of Kafka's protocol, and of read and write tasks",
    "naming": "its rules, and applying them",
    "offset_map": "folding the sends table, and advancing it",
    "offsets": "of many partitions in one request, and the command",
    "pause": "the operation and its command",
    "place": "of a buffer, and of a demo",
    "plan": "of a topic, of a micro-batch, of a mirror",
    "progress": "of a lane, and its bar",
    "quarantine": "the operation and its command",
    "resolve": "the operation and its command",
    "rules": "of reading, and of comparing",
    "run": "the verb and its command",
    "settings": "of a mirror, and of an embedded broker",
    "spark": "the session, and its Dagster resource",
    "status": "a lane's file, the operation, and its command",
    "task": "read task and write task",
}
"""Base names that stand in several rooms, and why one word is right in each."""


def modules() -> dict[str, Path]:
    """Every module by its dotted name; ``resources`` lies beside the package and is installed in it."""
    files = [(path, path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py")]
    files += [(path, Path("mirror_pipeline") / path.relative_to(ROOT)) for path in (ROOT / "resources").rglob("*.py")]
    return {".".join(name.with_suffix("").parts).removesuffix(".__init__"): path for path, name in files}


MODULES = modules()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def twice(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Of names with their places, those that stand in several."""
    places = defaultdict(list)
    for name, place in names:
        places[name].append(place)
    return {name: where for name, where in places.items() if len(where) > 1}


def room(module: str) -> str:
    """The first word below the package; empty for the package itself, which only hands out its public names."""
    return module.partition(".")[2].partition(".")[0]


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The package's modules that a file imports, written out or as a string, and whether it does so when it is imported itself."""
    tree = parsed(path)
    late = {id(node) for outer in ast.walk(tree) if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(outer)}
    late |= {id(node) for outer in ast.walk(tree) if isinstance(outer, ast.If) for node in ast.walk(outer)}  # TYPE_CHECKING
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and isinstance(node.args[0], ast.Constant):
            names = [str(node.args[0].value)]
        else:
            continue
        for name in names:
            name = f"mirror_pipeline.{name}" if name.startswith("resources.") else name
            found = name if name in MODULES else name.rpartition(".")[0]
            if found in MODULES and found != "mirror_pipeline":
                yield found, id(node) not in late


def test_every_room_has_a_level() -> None:
    assert {room(module) for module in MODULES} - {"", "dagster_home"} == set(LEVEL)


def test_a_file_imports_from_its_room_and_from_lower_levels_only() -> None:
    wrong = []
    for module, path in MODULES.items():
        here = room(module)
        for found, _ in imports(path):
            there = room(found)
            allowed = here in ("", there) or LEVEL[there] > LEVEL[here] or LEVEL[here] == LEVEL[there] == LOWEST
            if not allowed:
                wrong.append(f"{module} imports {found}")
    assert not wrong, "\n".join(sorted(set(wrong)))


def check_no_circle(graph: Mapping[str, Collection[str]]) -> None:
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            pytest.fail(" -> ".join([*way[way.index(name) :], name]))
        if name not in done:
            for found in graph.get(name, ()):
                visit(found, (*way, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_no_circle() -> None:
    """Of imports that are made when a module is imported."""
    check_no_circle({module: {found for found, now in imports(path) if now and found != module} for module, path in MODULES.items()})


def folder(module: str) -> tuple[str, ...]:
    parts = module.split(".")
    return tuple(parts if MODULES[module].name == "__init__.py" else parts[:-1])


def test_no_circle_of_folders() -> None:
    """Of any imports, between folders that lie beside each other."""
    graph = defaultdict(set)
    for module, path in MODULES.items():
        for found, _ in imports(path):
            ours, theirs = folder(module), folder(found)
            shared = next((at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), None)
            if shared is not None:
                graph[".".join(ours[: shared + 1])].add(".".join(theirs[: shared + 1]))
    check_no_circle(graph)


def crossing(into: str, *, outside: str = "", inside: str = "mirror_pipeline") -> list[str]:
    """Imports of ``into`` by modules ``inside`` of a folder and not ``outside`` of another one."""
    sources = [module for module in MODULES if module.startswith(inside) and not (outside and module.startswith(outside))]
    return [f"{module} imports {found}" for module in sources for found, _ in imports(MODULES[module]) if found.startswith(into)]


def test_what_runs_anywhere_knows_nothing_of_what_runs_once_a_lane() -> None:
    assert crossing("mirror_pipeline.engine.driver", inside="mirror_pipeline.engine.tasks") == []


def test_only_the_kafka_folder_knows_frames_and_connections() -> None:
    assert crossing("mirror_pipeline.kafka.wire", outside="mirror_pipeline.kafka") == []


def test_a_name_stands_twice_only_where_it_means_the_same() -> None:
    files = [path for path in MODULES.values() if path.stem not in ("__init__", "__main__")]
    several = twice((path.stem, str(path.relative_to(ROOT))) for path in files)
    assert {name: where for name, where in several.items() if name not in TWICE} == {}
    assert set(TWICE) - set(several) == set(), "names that stand once only need no reason"


def test_a_unit_test_lies_where_its_module_lies() -> None:
    """``test_<module>.py``, or ``test_<module>_<subject>.py``; beside the folders are tests of the tree as a whole."""
    unit = Path(__file__).parent
    homeless = []
    for path in unit.glob("*/**/test_*.py"):
        here = path.relative_to(unit).parent
        room = ROOT if here.parts[0] == "benchmarks" else PACKAGE
        if not any(path.stem == f"test_{file.stem}" or path.stem.startswith(f"test_{file.stem}_") for file in (room / here).glob("*.py")):
            homeless.append(str(path.relative_to(unit)))
    assert not homeless, "\n".join(homeless)


def test_no_class_name_stands_twice() -> None:
    classes = ((node.name, module) for module, path in MODULES.items() for node in parsed(path).body if isinstance(node, ast.ClassDef))
    assert twice(classes) == {}


def constants(path: Path) -> Iterator[str]:
    """Names that other modules may import; one letter is a type variable."""
    for node in parsed(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        for name in (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)):
            if name.isupper() and not name.startswith("_") and len(name) > 1:
                yield name


def test_no_constant_stands_twice() -> None:
    assert twice((name, module) for module, path in MODULES.items() for name in constants(path)) == {}
