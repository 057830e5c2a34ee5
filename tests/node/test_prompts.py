"""Audio prompts from a manifest to provenance: the engine gets them, the row holds them, and they are made again."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from fakes.shards import make_run, run, settings
from fakes.upstream import TINY_CODEC, hold_tiny

from levo.model.checkpoint import load
from levo.model.convert import convert
from levo.model.oracle import generate, greedy
from levo.node.making import REAL
from levo.node.verify import verify
from levo.settings import Settings
from levo.songs.manifest import check
from levo.songs.song import SONG_SCHEMA, Song
from levo.songs.text import TextEncoder

TOKENS = np.random.default_rng(3).integers(0, 256, (3, 20))
ROWS = [
    {"song_id": "file", "prompt_tokens": "prompt.npy"},
    {"song_id": "auto", "auto_prompt_audio_type": "Rock"},
    {"song_id": "none"},
    {"song_id": "lost", "prompt_tokens": "lost.npy"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    held = hold_tiny(folder)
    convert(held.checkpoint, held.runtime, folder / "model", torch.float32, TINY_CODEC)
    return folder / "model"


def test_prompts_reach_the_engine_and_provenance_and_the_songs_can_be_made_again(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "prompt.npy", TOKENS)
    np.save(tmp_path / "lost.npy", TOKENS[:, :7])
    rows = [{**row, "lyrics": "[verse] Salt on the window.", "seed": 5, "max_seconds": 1} for row in ROWS]
    (tmp_path / "songs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    check(tmp_path / "songs.jsonl", tmp_path / "checked", TextEncoder(model), Settings())
    table = pq.read_table(tmp_path / "checked" / "songs.parquet")
    assert table.schema.equals(SONG_SCHEMA)
    np.save(tmp_path / "lost.npy", TOKENS[:, :8])  # changed after the check
    greedy_run = settings(model=model)
    sampling = greedy_run.sampling.model_copy(update={"temperature": 0.0})
    songs = [Song(**row) for row in table.to_pylist()]
    paths = make_run(tmp_path / "run", songs, greedy_run.model_copy(update={"sampling": sampling}))
    code, said = run(tmp_path / "run", maker=REAL)
    assert code == 0, said
    found = {row["song_id"]: row for row in pq.read_table(paths.provenance).to_pylist()}
    assert np.array_equal(found["file"]["prompt"], TOKENS)
    assert found["auto"]["prompt_source"].startswith("auto:Rock/en/") and np.shape(found["auto"]["prompt"]) == (3, 25)
    assert found["none"]["prompt"] is None and found["none"]["prompt_source"] is None
    assert found["lost"]["outcome"] == "rejected" and "changed since the manifest was checked" in found["lost"]["error"]

    loaded, encoder = load(model, "cpu", torch.float32), TextEncoder(model)
    assert loaded.lm is not None
    conditioning = encoder.prepare(rows[0]["lyrics"], None, "mixed")
    tokens = {row["song_id"]: row["tokens"] for row in pq.read_table(paths.tokens).to_pylist()}
    for song_id in ("file", "auto", "none"):
        prompt = found[song_id]["prompt"]
        ids = None if prompt is None else np.array(prompt)
        plain = generate(loaded.lm, conditioning, ids, loaded.pad_id, 25, greedy)
        assert np.array_equal(plain.cut, tokens[song_id]), song_id
        if ids is not None:
            assert not set(tokens[song_id][0]) & set(ids[0].tolist()), "ids of the prompt are banned"
    assert len({json.dumps(tokens[song_id]) for song_id in ("file", "auto", "none")}) == 3

    for path in (tmp_path / "prompt.npy", tmp_path / "checked" / "songs.parquet"):
        path.unlink()
    summary = verify(paths.provenance, 4, None)
    assert len(summary.equal) == 3 and summary.different == []
