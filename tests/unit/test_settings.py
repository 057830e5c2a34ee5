"""Settings: wrong ones are refused with the remedy, and a RUN keeps those that shaped its songs."""

import json
from pathlib import Path

import pytest
import yaml

from levo import settings
from levo.errors import ConfigError
from levo.settings import Settings


def started(tmp_path: Path, chosen: Settings, *, with_shards: bool) -> Path:
    run = tmp_path / "results" / chosen.run
    settings.freeze(chosen, run)
    if with_shards:
        (run / "work/00000").mkdir(parents=True)
        (run / "work/00000/journal.jsonl").touch()
    return run


def test_an_unknown_setting_gets_the_nearest_name() -> None:
    with pytest.raises(ConfigError) as caught:
        settings.load({"plan": {"n_shard": 3}}, where="my.yaml")
    assert caught.value.what == "unknown setting `plan.n_shard`"
    assert caught.value.where == "my.yaml"
    assert caught.value.fix == "did you mean `n_shards`?"


def test_an_unknown_setting_like_no_other_gets_the_list() -> None:
    with pytest.raises(ConfigError) as caught:
        settings.load({"plan": {"zzzz": 3}})
    assert caught.value.fix == "known here: n_shards, length_model"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"plan": {"n_shards": 0}}, "plan.n_shards"),
        ({"plan": {"n_shards": "many"}}, "plan.n_shards"),
        ({"run": "../elsewhere"}, "run"),
        ({"node": {"device": "tpu"}}, "node.device"),
        ({"limits": {"failed_share": 2}}, "limits.failed_share"),
        ({"plan": None}, "plan"),
    ],
)
def test_a_wrong_value_is_named_with_the_value_found(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"setting `{named}` = ") as caught:
        settings.load(wrong)
    assert "\n" not in caught.value.what


def test_settings_cannot_be_changed_in_flight() -> None:
    with pytest.raises(Exception, match="frozen"):
        Settings().seed = 1  # type: ignore[misc]


def test_the_generated_yaml_gives_the_defaults_and_explains_every_key() -> None:
    text = settings.as_yaml()
    assert settings.load(yaml.safe_load(text)) == Settings()
    lines = text.splitlines()
    for before, line in zip(lines, lines[1:], strict=False):
        if line and not line.lstrip().startswith("#"):
            assert before.lstrip().startswith("#"), f"no comment above: {line}"


def test_the_schema_knows_the_same_sections_and_forbids_others() -> None:
    schema = yaml.safe_load(settings.as_schema())
    assert set(schema["properties"]) == set(Settings.model_fields)
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("text", ["run: [", "- a\n- b\n", "\x00"])
def test_a_damaged_settings_file_is_told_without_a_traceback(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        settings.read(path)
    assert caught.value.where == str(path)


def test_an_empty_settings_file_gives_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    assert settings.read(tmp_path / "empty.yaml") == Settings()


def test_a_run_gives_back_the_settings_it_was_started_with(tmp_path: Path) -> None:
    chosen = settings.load({"run": "a", "seed": 7, "plan": {"n_shards": 9}})
    assert settings.of_run(started(tmp_path, chosen, with_shards=False)) == chosen


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a RUN") as caught:
        settings.of_run(tmp_path)
    assert caught.value.where == str(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"plan": {"n_shards": 5}},
        {"sampling": {"top_k": 51}},
        {"model": "m"},
        {"limits": {"max_seconds": 100}},
        {"engine": {"gemm_rows": 32}},
        {"node": {"dtype": "float16"}},
    ],
)
def test_what_shapes_songs_is_refused_once_there_are_shards(tmp_path: Path, change: dict[str, object]) -> None:
    run = started(tmp_path, Settings(), with_shards=True)
    before = (run / "config.json").read_text()
    for act in (settings.refuse_change, settings.freeze):
        with pytest.raises(ConfigError, match=f"changed after songs were made: {next(iter(change))}"):
            act(settings.load(change), run)
    assert (run / "config.json").read_text() == before


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_setting_is_a_finite_number(value: float) -> None:
    for section, key in (("sampling", "temperature"), ("limits", "max_seconds")):
        with pytest.raises(ConfigError, match=f"setting `{section}.{key}` = {value}: input should be a finite number"):
            settings.load({section: {key: value}})


def test_a_damaged_config_of_a_run_is_named_and_not_written_over(tmp_path: Path) -> None:
    run = started(tmp_path, Settings(), with_shards=True)
    for content in (b"", b'{"seed": 1', b"\xff\xfe"):
        (run / "config.json").write_bytes(content)
        for act in (settings.refuse_change, settings.freeze):
            with pytest.raises(ConfigError, match="not readable as JSON") as caught:
                act(Settings(), run)
            assert caught.value.where == str(run / "config.json") and "put the file back" in caught.value.fix
        assert (run / "config.json").read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [{"node": {"ranks": 2}}, {"engine": {"slots": 2}}, {"qa": {"max_dc": 0.1}}, {"limits": {"failed_share": 0.5}}],
)
def test_what_does_not_shape_songs_may_change_at_any_time(tmp_path: Path, change: dict[str, object]) -> None:
    run = started(tmp_path, Settings(), with_shards=True)
    settings.freeze(settings.load(change), run)
    assert settings.of_run(run) == settings.load(change)


def test_everything_may_change_before_there_are_shards(tmp_path: Path) -> None:
    run = started(tmp_path, Settings(), with_shards=False)
    settings.freeze(settings.load({"seed": 1}), run)
    assert json.loads((run / "config.json").read_text())["seed"] == 1


def test_freezing_leaves_no_temporary_file(tmp_path: Path) -> None:
    run = started(tmp_path, Settings(), with_shards=False)
    assert [path.name for path in run.iterdir()] == ["config.json"]
