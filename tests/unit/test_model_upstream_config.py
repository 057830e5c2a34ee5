"""Upstream's config.yaml: references, arithmetic and lists are resolved, and nothing is evaluated."""

from pathlib import Path
from typing import Any

import pytest

from levo.errors import ModelError
from levo.model.upstream_config import UpstreamConfig

TEXT = """
max_dur: 270
prompt_len: 10
rate: 25
name: take
lists: {short: [a, b], long: [c]}
outer:
  width: 3
  inner: {beside: "${.width}", up: "${..width}", top: "${rate}", width: 5}
values:
  arithmetic: ${eval:${prompt_len}*${rate}+2}
  division: ${eval:'(7 - 1) // 2 / -3'}
  joined: ${concat:${lists.short},${lists.long}}
  file: ${load_yaml:conf/tags.yaml}
  fname: ${get_fname:}
  text: "./ckpt/${name}_${rate}.pt"
  nested: ["${rate}", {deep: "${outer.inner.up}"}]
"""


def config(folder: Path, text: str = TEXT) -> UpstreamConfig:
    (folder / "conf").mkdir(exist_ok=True)
    (folder / "conf" / "tags.yaml").write_text("['[verse]', '[chorus]']")
    (folder / "config.yaml").write_text(text)
    return UpstreamConfig(folder / "config.yaml", folder)


VALUES: dict[str, Any] = {
    "values.arithmetic": 252,
    "values.division": -1.0,
    "values.joined": ["a", "b", "c"],
    "values.file": ["[verse]", "[chorus]"],
    "values.fname": "config",
    "values.text": "./ckpt/take_25.pt",
    "values.nested": [25, {"deep": 3}],
    "outer.inner": {"beside": 5, "up": 3, "top": 25, "width": 5},
    "values.none": None,
    "max_dur.deeper": None,
}


@pytest.mark.parametrize("key", VALUES)
def test_values_are_resolved(key: str, tmp_path: Path) -> None:
    assert config(tmp_path).get(key) == VALUES[key]


REFUSED = {
    "a: ${eval:__import__('os').system('touch HARM')}": "is not arithmetic",
    "a: ${eval:(1).__class__}": "is not arithmetic",
    "a: ${eval:2**9999999}": "is not arithmetic",
    "a: ${eval:9999999999*9999999999}": "is not arithmetic",
    "a: ${eval:1/0}": "is not arithmetic",
    "a: ${eval:[x for x in (1,)]}": "is not arithmetic",
    "a: ${eval:True+1}": "is not arithmetic",
    "a: ${oc.env:HOME}": "unknown resolver 'oc.env'",
    "a: ${b}": "refers to b, which has no value",
    "a: ${a}": "refers to itself",
    "a: ${b}\nb: ['${a}']": "refers to itself",
    "a: ${eval:${b}": "never closed",
    "a: ${load_yaml:../../etc/passwd}": "names a file outside",
    "a: ${load_yaml:conf/none.yaml}": "cannot be read: No such file",
}


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_refused_by_name(text: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=REFUSED[text]):
        config(tmp_path, text).get("a")
    assert not list(tmp_path.rglob("HARM"))


@pytest.mark.parametrize(
    "text", ["a: !!python/object/apply:os.mkdir [HARM]", "[1, 2]", "a: [", "a: \x00", "x: 1\n" * 300_000]
)
def test_unsafe_or_damaged_yaml_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        config(tmp_path, text)
    assert not list(tmp_path.rglob("HARM"))


def test_only_known_keys_are_kept_and_a_fork_may_nest_its_limits(tmp_path: Path) -> None:
    found = config(tmp_path, "lyric_processor: {max_dur: 280, prompt_len: 10}\nmin_dur: 30\nvae_model: /home/me/x\n")
    assert found.plain() == {"max_dur": 280, "min_dur": 30, "prompt_len": 10}
