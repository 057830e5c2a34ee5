"""The command line: exit codes, plain errors, the verbs' promises. Rooms are stand-ins here."""

import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from levo import __version__, cli, settings
from levo.errors import EXIT_DIFFERENT, EXIT_INPUT, EXIT_MODEL, EXIT_MORE_TO_DO, EXIT_USABLE, ModelError

Levo = Callable[..., tuple[int, str, str]]


@pytest.fixture
def levo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Levo:
    """Runs a command; gives exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["levo", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        code = ended.value.code
        return code if isinstance(code, int) else int(code is not None), printed.out, printed.err

    return run


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a stand-in for a room's module, with these functions."""

    def put(name: str, **functions: Any) -> None:
        module = types.ModuleType(name)
        for function, stand_in in functions.items():
            setattr(module, function, stand_in)
        monkeypatch.setitem(sys.modules, name, module)

    return put


def test_version(levo: Levo) -> None:
    assert levo("--version") == (0, f"levo {__version__}\n", "")


def test_help_lists_every_verb(levo: Levo) -> None:
    _, out, _ = levo("--help")
    verbs = "start check plan estimate shard qa report status accounting verify render sing retry fit-length doctor"
    assert not [verb for verb in [*verbs.split(), "rehearse-node", "model", "bench"] if verb not in out.split()]


def test_an_error_is_three_lines_and_no_traceback(levo: Levo, tmp_path: Path) -> None:
    code, out, err = levo("start", "--config", tmp_path / "none.yaml")
    assert (code, out) == (EXIT_INPUT, "")
    assert err.splitlines()[0] == "no such settings file"
    assert [line.split(":")[0].strip() for line in err.splitlines()[1:]] == ["where", "fix"]


def test_an_error_ends_with_the_code_of_its_kind(levo: Levo, room: Callable[..., None], tmp_path: Path) -> None:
    def broken(out: Path, seed: int) -> None:
        raise ModelError("no room on the disk", where=str(out), fix="another folder")

    room("levo.model.tiny", write_tiny=broken)
    code, _, err = levo("model", "tiny", tmp_path)
    assert code == EXIT_MODEL and "Traceback" not in err


def test_a_fault_of_ours_keeps_its_traceback(room: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(run: Path) -> None:
        raise ZeroDivisionError

    room("levo.songs.plan", plan_run=faulty)
    monkeypatch.setattr(sys, "argv", ["levo", "plan", "results/a"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_start_makes_a_run_from_a_settings_file(levo: Levo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("run: mine\nseed: 3\n")
    code, out, _ = levo("start", "--config", "mine.yaml")
    assert code == 0 and "results/mine/config.json" in out
    assert settings.of_run(Path("results/mine")).seed == 3


def check_gives(room: Callable[..., None], n_songs: int, by_reason: dict[str, int], seen: dict[str, Any]) -> None:
    def check(manifest: Path, out: Path, encoder: object, chosen: settings.Settings) -> SimpleNamespace:
        seen.update(encoder=encoder, settings=chosen)
        row = {"line": 7, "sentence": "Lyrics are missing.", "fix": "Add them."}
        pq.write_table(pa.Table.from_pylist([row] * sum(by_reason.values()) or [row]), out / "rejected.parquet")
        return SimpleNamespace(
            n_songs=n_songs,
            n_rejected=sum(by_reason.values()),
            by_reason=by_reason,
            lyrics_ignored=0,
            predicted_hours=0.5,
        )

    room("levo.songs.manifest", check=check)
    room("levo.songs.text", TextEncoder=lambda model: model)


def test_check_with_some_rejected_rows_says_how_many_why_and_where(
    levo: Levo, room: Callable[..., None], tmp_path: Path
) -> None:
    check_gives(room, 3, {"no_lyrics": 2, "bad_seed": 1}, {})
    code, out, _ = levo("check", "m.jsonl", "--out", tmp_path)
    assert code == 0
    assert "3 songs" in out and "3 rows rejected (bad_seed 1, no_lyrics 2)" in out
    assert str(tmp_path / "rejected.parquet") in out


def test_check_with_no_song_left_is_an_input_error(levo: Levo, room: Callable[..., None], tmp_path: Path) -> None:
    check_gives(room, 0, {"no_lyrics": 2}, {})
    code, _, err = levo("check", "m.jsonl", "--out", tmp_path)
    assert code == EXIT_INPUT and "no song is left: 2 rows rejected (no_lyrics 2)" in err and "m.jsonl" in err
    assert err.count("line 7: Lyrics are missing. Add them.") == 2


def test_check_reads_the_settings_of_the_run_around_it(levo: Levo, room: Callable[..., None], tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    check_gives(room, 1, {}, seen)
    settings.freeze(settings.load({"seed": 5, "model": "models/other"}), tmp_path)
    (tmp_path / "manifest").mkdir()
    levo("check", "m.jsonl", "--out", tmp_path / "manifest")
    assert seen["settings"].seed == 5 and seen["encoder"] == Path("models/other")
    levo("check", "m.jsonl", "--out", tmp_path / "manifest", "--model", "models/third")
    assert seen["encoder"] == Path("models/third")


def test_check_outside_a_run_takes_the_defaults(levo: Levo, room: Callable[..., None], tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    check_gives(room, 1, {}, seen)
    levo("check", "m.jsonl", "--out", tmp_path)
    assert seen["settings"] == settings.Settings()


@pytest.mark.parametrize("code", [0, EXIT_MORE_TO_DO])
def test_shard_ends_with_the_code_of_the_shard(levo: Levo, room: Callable[..., None], code: int) -> None:
    asked: list[tuple[Path, int]] = []

    def run_shard(run: Path, number: int) -> int:
        asked.append((run, number))
        return code

    room("levo.node.shard", run_shard=run_shard)
    assert levo("shard", "results/a", "00042")[0] == code
    assert asked == [(Path("results/a"), 42)]


def test_shard_refuses_a_negative_number(levo: Levo) -> None:
    assert levo("shard", "results/a", "--", "-1")[0] == EXIT_INPUT


@pytest.mark.parametrize(("different", "code"), [([], 0), (["song a: tokens differ"], EXIT_DIFFERENT)])
def test_verify_ends_with_5_if_anything_differs(
    levo: Levo, room: Callable[..., None], different: list[str], code: int
) -> None:
    room("levo.node.verify", verify=lambda provenance, n, model: SimpleNamespace(different=different))
    assert levo("verify", "provenance.parquet", "--songs", 1)[0] == code


def test_a_checkpoint_that_does_not_fit_is_three_lines(levo: Levo, tmp_path: Path) -> None:
    arguments = ("--checkpoint", tmp_path, "--runtime", tmp_path, "--out", tmp_path / "out")
    code, out, err = levo("model", "convert", *arguments)
    assert (code, out) == (EXIT_MODEL, "") and err.startswith("config.yaml is missing\n") and len(err.splitlines()) == 3
    code, _, err = levo("model", "convert", *arguments, "--dtype", "int8")
    assert code == EXIT_INPUT and "float16, float32" in err


def test_inspect_prints_a_table(levo: Levo, tiny_dir: Path) -> None:
    code, out, _ = levo("model", "inspect", tiny_dir, "--memory", 80, "--seconds", 20)
    assert code == 0 and "main transformer" in out and "on a GPU with 80 GiB" in out


def test_a_bad_self_check_ends_with_the_code_for_differences(levo: Levo, room: Callable[..., None]) -> None:
    for against, expected in (([], 0), (["a song differs"], EXIT_DIFFERENT)):
        room("levo.bench.selfcheck", selfcheck=lambda *_, bad=against: SimpleNamespace(against=bad))
        assert levo("model", "selfcheck", "models/x")[0] == expected


def test_doctor_ends_with_the_code_of_its_worst_finding(levo: Levo, room: Callable[..., None]) -> None:
    room("levo.node.doctor", doctor=lambda model, out, profile: SimpleNamespace(exit_code=EXIT_USABLE))
    assert levo("doctor")[0] == EXIT_USABLE
