"""The shape of the house: which room may import which, how large a file may grow, and what must not be stale."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.generate import files as generated_files

ROOT = Path(__file__).resolve().parent.parent.parent

# Each may import itself and what stands before it. `measures` is a side room: numpy only.
ROOMS = (
    "errors", "disk", "pace", "settings", "songs", "model", "engine", "measures", "node", "reports", "bench", "cli",
    "__main__",
)  # fmt: skip
TORCH_FREE = ("errors", "disk", "pace", "settings", "songs", "measures", "reports", "cli", "__main__")
MEASURES_MAY = {"numpy", "pyloudnorm", "levo"}
MAX_LINES, MAX_SMK_LINES, MAX_FUNCTION, MAX_PARAMETERS = 400, 150, 60, 8

SOURCES = sorted((ROOT / "levo").rglob("*.py"))
CODE = SOURCES + sorted(path for folder in ("tests", "tools") for path in (ROOT / folder).rglob("*.py"))


def tracked(*patterns: str) -> list[Path]:
    """Files of the checkout: git's list where there is one, so that a user's results and venv are not read."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    hidden = {".venv", "results", "models", ".snakemake"}
    found = (path for pattern in patterns for path in ROOT.rglob(pattern))
    return [path for path in found if not hidden & set(path.relative_to(ROOT).parts)]


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "levo").parts[0].removesuffix(".py")


def imports(tree: ast.Module) -> Iterator[str]:
    """Modules imported by absolute name, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that this test can read them"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_rooms_import_only_from_rooms_before_them(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    assert room in ROOMS, f"{name(path)}: a new room belongs into the list here and in README.md"
    for module in imports(parse(path)):
        parts = module.split(".")
        if parts[0] == "levo" and len(parts) > 1 and parts[1] in ROOMS:
            assert ROOMS.index(parts[1]) <= ROOMS.index(room), f"{room} imports {module}: data flows down, never up"


def test_rooms_without_tensors_do_not_bring_torch() -> None:
    """Imported in one fresh process, so that a way through another room is seen too."""
    modules = [
        name(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in SOURCES
        if room_of(path) in TORCH_FREE and path.stem != "__main__"
    ]
    code = "import importlib, sys\n" + "".join(
        f"importlib.import_module({module!r}); assert 'torch' not in sys.modules, {module!r}\n" for module in modules
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_command_line_starts_without_torch_or_pyarrow() -> None:
    code = "import sys, levo.cli; print([m for m in ('torch', 'pyarrow', 'matplotlib', 'pandas') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"


@pytest.mark.parametrize("path", [p for p in SOURCES if room_of(p) == "measures"], ids=name)
def test_measures_know_numpy_only(path: Path) -> None:
    for module in imports(parse(path)):
        first = module.split(".")[0]
        assert first in MEASURES_MAY | set(sys.stdlib_module_names), f"{name(path)} imports {module}"
        assert first != "levo" or module.split(".")[1] in ("measures", "errors", "settings"), module


@pytest.mark.parametrize("path", CODE, ids=name)
def test_files_and_functions_stay_small(path: Path) -> None:
    n_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert n_lines <= MAX_LINES, f"{name(path)} has {n_lines} lines: tell it in two files"
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            n_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            where = f"{name(path)}:{node.lineno} {node.name}"
            assert n_lines <= MAX_FUNCTION, f"{where} has {n_lines} lines"
            n_parameters = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
            n_parameters -= bool(node.args.args) and node.args.args[0].arg in ("self", "cls")
            if any(ast.unparse(decorator) == "triton.jit" for decorator in node.decorator_list):
                continue  # a kernel takes its pointers and strides one by one
            assert n_parameters <= MAX_PARAMETERS, f"{where} has {n_parameters} parameters: pass a settings object"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_every_module_says_what_it_does(path: Path) -> None:
    assert ast.get_docstring(parse(path)), f"{name(path)} has no docstring"


@pytest.mark.parametrize("room", ["songs", "model", "engine", "node", "reports", "bench"])
def test_the_map_of_a_room_names_every_file_and_no_other(room: str) -> None:
    folder = ROOT / "levo" / room
    files = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    docstring = ast.get_docstring(parse(folder / "__init__.py")) or ""
    lines = re.sub(r"\([^)]*\)", "", docstring).split("\n* ")[1:]  # * a purpose: file, file (what it is), ...
    named = [word.strip() for line in lines for word in line.partition(":")[2].split(",")]
    assert sorted(named) == sorted(files - {"__init__"})


def test_rules_files_stay_small_and_call_the_command_line_only() -> None:
    for path in [ROOT / "Snakefile", *sorted((ROOT / "workflow/rules").glob("*.smk"))]:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= MAX_SMK_LINES, path
        assert not re.search(r"^\s*(run|script|notebook|wrapper):", text, re.MULTILINE), f"{path}: rules call `levo`"
        for command in re.findall(r"shell:\s*\"([^\"]*)\"", text):
            assert command.startswith("exec python -m levo "), command


@pytest.mark.parametrize("path", [path for path in SOURCES if path.stem != "disk"], ids=name)
def test_files_come_about_in_one_way(path: Path) -> None:
    """levo.disk syncs before it renames; a way of one's own forgets that. Doctor tries what the file system can."""
    calls = {ast.unparse(node.func) for node in ast.walk(parse(path)) if isinstance(node, ast.Call)}
    assert "os.replace" not in calls or path.parts[-2:] == ("doctor", "storage.py"), f"{name(path)}: use levo.disk"


def test_no_vague_file_names() -> None:
    vague = {"utils.py", "helpers.py", "common.py", "misc.py", "util.py"}
    assert not [name(path) for path in CODE if path.name in vague]


def test_nothing_is_left_to_do_in_the_code() -> None:
    marks = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    texts = tracked("*.py", "*.smk", "*.md", "*.yaml", "*.toml", "Snakefile", "Makefile")
    assert not [name(path) for path in texts if marks.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("path", generated_files(), ids=name)
def test_generated_files_are_current(path: Path) -> None:
    made = generated_files()[path]()
    assert path.exists() and path.read_text(encoding="utf-8") == made, f"{name(path)} is stale: run `make fix`"


@pytest.mark.parametrize("path", tracked("*.md"), ids=name)
def test_links_in_markdown_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            file, _, heading = target.partition("#")
            there = (path.parent / file).resolve() if file else path
            assert there.exists(), f"{name(path)}: {target}"
            if heading and there.suffix == ".md":
                titles = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}
                assert heading in anchors, f"{name(path)}: {target}"


def test_readme_is_short_and_names_only_files_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 220
    ours = r"`((?:levo|workflow|profiles|config|tests|docs|tools)/[\w./-]*\w)`"
    assert not [path for path in re.findall(ours, text) if not (ROOT / path).exists()]


@pytest.mark.parametrize("command", [["ruff", "check"], ["ruff", "format", "--check"]], ids=" ".join)
def test_style(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
