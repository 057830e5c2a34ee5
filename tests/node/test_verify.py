"""`levo verify` and `levo render` on a shard that the real engine made with a tiny model, on one and on two ranks."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.shards import lasting, make_run, run, settings, song

from levo.errors import ModelError, NodeError
from levo.model.tiny import write_tiny
from levo.node.audio import decode_flac, pcm_sha256
from levo.node.machine import git_commit
from levo.node.making import REAL
from levo.node.paths import ShardPaths
from levo.node.provenance import row_sha256
from levo.node.render import render
from levo.node.verify import verify
from levo.settings import freeze

SONGS = [song(number, max_seconds=1.0, predicted_frames=25) for number in range(4)]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory, tiny_dir):
    run_dir = tmp_path_factory.mktemp("sealed")
    paths = make_run(run_dir, SONGS, settings(model=tiny_dir))
    code, said = run(run_dir, maker=REAL)
    assert code == 0, said
    return paths


@pytest.fixture
def copy(sealed, tmp_path):
    shutil.copytree(sealed.run_dir, tmp_path / "copy")
    return ShardPaths(tmp_path / "copy", 0)


def test_songs_are_the_same_after_a_kill_and_with_other_ranks_and_slots(sealed, tmp_path, tiny_dir):
    paths = make_run(tmp_path, SONGS, settings(model=tiny_dir))
    assert run(tmp_path, maker=REAL, LEVO_FAULT="part.write:2:kill-shard")[0] == -9
    freeze(settings(model=tiny_dir, ranks=2, slots=4), tmp_path)
    code, said = run(tmp_path, maker=REAL)
    assert code == 0 and "resuming: 2 songs done, 2 to make, 2 were in flight" in said, said
    rows = pq.read_table(paths.provenance).to_pylist()
    assert {(row["attempt"], row["rank"]) for row in rows} == {(1, 0), (2, 0), (2, 1)}
    assert _without_slots(lasting(paths)) == _without_slots(lasting(sealed))


def _without_slots(rows):
    return {song_id: {**row, "batch_size": None} for song_id, row in rows.items()}


def test_songs_made_again_from_their_rows_are_equal(sealed):
    summary = verify(sealed.provenance, 4, None)
    assert (len(summary.equal), summary.different, summary.not_comparable) == (4, [], [])
    assert summary.n_rows == 4 and summary.n_files == 7
    assert "nothing differs" in str(summary)


def test_a_changed_bit_of_a_token_is_found(copy):
    rows = pq.read_table(copy.tokens).to_pylist()
    rows[1]["tokens"][2][3] ^= 1
    _rewrite(copy.tokens, rows)
    assert _differences(copy) == [f"song {rows[1]['song_id']!r}: its tokens were changed (tokens_sha256)"]


def test_a_changed_bit_of_a_flac_file_is_found(copy):
    row = pq.read_table(copy.audio).to_pylist()[0]
    tar = copy.out / row["tar"]
    content = bytearray(tar.read_bytes())
    content[content.index(b"fLaC") + row["bytes"] // 2] ^= 1
    tar.write_bytes(content)
    found = _differences(copy)
    assert f"{row['tar']}: its bytes were changed (sha256)" in found
    assert any(row["song_id"] in line and "flac_sha256" in line for line in found)


@pytest.mark.parametrize(
    ("column", "value"), [("lyrics", "[verse] lu"), ("host", "elsewhere"), ("gpu_seconds", 1.0), ("prompt", [[1]] * 3)]
)
def test_a_changed_provenance_row_is_found(copy, column, value):
    rows = pq.read_table(copy.provenance).to_pylist()
    rows[2][column] = value
    _rewrite(copy.provenance, rows)
    assert f"song {rows[2]['song_id']!r}: its provenance row was changed (row_sha256)" in _differences(copy)


def test_missing_files_and_rows_are_found(copy):
    rows = pq.read_table(copy.audio).to_pylist()
    _rewrite(copy.audio, rows[1:])
    (copy.out / rows[-1]["tar"]).unlink()
    found = _differences(copy)
    assert any("missing in audio.parquet" in line for line in found)
    assert f"{rows[-1]['tar']}: missing" in found


def test_a_row_that_tells_another_story_is_different_when_made_again(copy):
    """Forged with all hashes right: only making the song again can tell."""
    _forge(copy, seed=1, git_commit=git_commit())
    summary = verify(copy.provenance, 4, None)
    assert len(summary.equal) == 3
    assert any("made again" in line and "tokens differ" in line for line in summary.different)


@pytest.mark.parametrize("changes", [{"torch_version": "1.0"}, {"device": "cuda", "gpu_name": "NVIDIA GH200"}])
def test_another_machine_is_not_comparable_and_never_different(copy, changes):
    _forge(copy, **changes)
    summary = verify(copy.provenance, 4, None)
    assert len(summary.equal) == 3 and len(summary.not_comparable) == 1
    assert not [line for line in summary.different if "made again" in line]


def test_a_song_that_other_code_made_otherwise_is_not_comparable(copy):
    _forge(copy, seed=1, git_commit="0" * 40)
    summary = verify(copy.provenance, 4, None)
    assert not [line for line in summary.different if "made again" in line]
    assert any("git_commit was 000" in line for line in summary.not_comparable)


def test_another_model_is_not_comparable(sealed, tmp_path):
    write_tiny(tmp_path / "other", seed=1)
    summary = verify(sealed.provenance, 2, tmp_path / "other")
    assert len(summary.not_comparable) == 2 and not summary.different


def test_what_is_no_provenance_is_said_plainly(sealed, tmp_path):
    (tmp_path / "provenance.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(NodeError, match="not a readable table"):
        verify(tmp_path / "provenance.parquet", 1, None)
    with pytest.raises(NodeError, match="columns are not those"):
        verify(sealed.tokens, 1, None)


def test_render_gives_the_shards_own_audio_without_the_language_model(sealed, tmp_path, tiny_dir):
    model = tmp_path / "model"
    shutil.copytree(tiny_dir, model)
    (model / "model.safetensors").unlink()
    rendered = render(sealed.tokens, tmp_path / "out", model, None)
    recorded = {row["member"]: row["pcm_sha256"] for row in pq.read_table(sealed.audio).to_pylist()}
    found = {path.name: digest for _, path, digest in rendered.files}
    assert found == recorded
    name, digest = next(iter(found.items()))
    assert pcm_sha256(decode_flac((tmp_path / "out" / name).read_bytes())[0]) == digest


def test_render_takes_single_songs_and_refuses_unknown_ones_and_other_models(sealed, tmp_path):
    rendered = render(sealed.tokens, tmp_path / "out", None, [SONGS[3].song_id])
    assert len(rendered.files) == 3 and "3 audio files" in str(rendered)
    with pytest.raises(NodeError, match="no song 'nobody' among 4"):
        render(sealed.tokens, tmp_path / "out", None, ["nobody"])
    write_tiny(tmp_path / "other", seed=1)
    with pytest.raises(ModelError, match="another one"):
        render(sealed.tokens, tmp_path / "out", tmp_path / "other", None)


def test_render_refuses_changed_tokens(copy, tmp_path):
    rows = pq.read_table(copy.tokens).to_pylist()
    rows[0]["tokens"] = (np.array(rows[0]["tokens"]) ^ 1).tolist()
    _rewrite(copy.tokens, rows)
    with pytest.raises(NodeError, match="tokens were changed"):
        render(copy.tokens, tmp_path / "out", None, None)


def _differences(paths):
    """Without making a song again: the check of the files."""
    summary = verify(paths.provenance, 0, None)
    assert not summary.equal and not summary.not_comparable
    return summary.different


def _rewrite(path, rows):
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)


def _forge(paths, **changes):
    """Change columns of the first row, and make its own hash right."""
    rows = pq.read_table(paths.provenance).to_pylist()
    rows[0].update(changes)
    rows[0]["row_sha256"] = row_sha256(rows[0])
    _rewrite(paths.provenance, rows)
