"""One song from the command line."""

import numpy as np
import pytest

from levo.errors import ManifestError, ModelError, NodeError
from levo.node.audio import decode_flac, pcm_sha256
from levo.node.sing import sing

LYRICS = "[verse] la la la. ; [chorus] lo lo."


def test_the_same_seed_gives_the_same_file_and_another_seed_another(tiny_dir, tmp_path):
    first = sing(LYRICS, None, "mixed", tiny_dir, 4, tmp_path / "first.flac", 1.0)
    again = sing(LYRICS, None, "mixed", tiny_dir, 4, tmp_path / "again.flac", 1.0)
    other = sing(LYRICS, None, "mixed", tiny_dir, 5, tmp_path / "other.flac", 1.0)
    assert (tmp_path / "first.flac").read_bytes() == (tmp_path / "again.flac").read_bytes()
    assert (tmp_path / "first.flac").read_bytes() != (tmp_path / "other.flac").read_bytes()
    assert first.seconds == again.seconds and "seed 5" in str(other)


def test_separate_gives_three_files_of_equal_length(tiny_dir, tmp_path):
    sung = sing(LYRICS, "pop", "separate", tiny_dir, 4, tmp_path / "song.flac", 1.0)
    assert [path.name for path in sung.files] == ["song.flac", "song-vocal.flac", "song-bgm.flac"]
    for path, audio in sung.files.items():
        pcm, rate = decode_flac(path.read_bytes())
        assert rate == 48000 and len(pcm) == round(sung.seconds * rate)
        assert pcm_sha256(pcm) == pcm_sha256(audio.pcm)
        assert np.abs(pcm).max() > 0


def test_refused_lyrics_say_what_to_do_and_make_no_file(tiny_dir, tmp_path):
    with pytest.raises(ManifestError, match=r"\[vers\]") as raised:
        sing("[vers] la", None, "mixed", tiny_dir, 0, tmp_path / "song.flac", 1.0)
    assert "[verse]" in raised.value.fix
    assert not (tmp_path / "song.flac").exists()


def test_a_missing_model_and_a_place_that_cannot_be_written_are_said_plainly(tiny_dir, tmp_path):
    with pytest.raises(ModelError, match="no model directory"):
        sing(LYRICS, None, "mixed", tmp_path / "none", 0, tmp_path / "song.flac", 1.0)
    (tmp_path / "file").write_text("")
    with pytest.raises(NodeError, match="cannot write"):
        sing(LYRICS, None, "mixed", tiny_dir, 0, tmp_path / "file" / "song.flac", 1.0)
