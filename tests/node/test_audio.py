"""FLAC and tars: the same in, the same bytes out, and damage is noticed."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from levo.errors import NodeError
from levo.node.audio import (
    decode_flac,
    encode_flac,
    member_name,
    pcm_sha256,
    read_member,
    read_members,
    tar_pieces,
)

HARSH_IDS = ["04 絆ふぉーえばー", "a/b", "..", "", "x" * 300, "dot.", "new\nline", "a\0b"]


def noise(n: int = 4800) -> np.ndarray:
    pcm = np.random.default_rng(0).integers(-32768, 32768, (n, 2), dtype=np.int16)
    pcm[:4] = [[-32768, 32767], [32767, -32768], [0, -1], [1, 0]]
    return pcm


def tar_of(path: Path, *files: tuple[str, bytes]) -> Path:
    path.write_bytes(b"".join(tar_pieces(files)))
    return path


def test_flac_keeps_every_sample() -> None:
    pcm, rate = decode_flac(encode_flac(noise(), 48000))
    assert rate == 48000 and pcm.dtype == np.int16
    np.testing.assert_array_equal(pcm, noise())


def test_flac_of_another_process_has_the_same_bytes() -> None:
    code = (
        "import numpy as np, sys; from levo.node.audio import encode_flac; p = np.random.default_rng(0).integers"
        "(-99, 99, (9000, 2), dtype=np.int16); sys.stdout.buffer.write(encode_flac(p, 48000))"
    )
    pcm = np.random.default_rng(0).integers(-99, 99, (9000, 2), dtype=np.int16)
    assert subprocess.check_output([sys.executable, "-c", code]) == encode_flac(pcm, 48000)


def test_flac_takes_only_integers_that_are_ready() -> None:
    with pytest.raises(ValueError, match="int16"):
        encode_flac(noise().astype(np.float32), 48000)


def test_hash_is_of_values_not_of_memory_layout() -> None:
    pcm = noise()
    assert pcm_sha256(pcm) == pcm_sha256(np.asfortranarray(pcm))
    changed = pcm.copy()
    changed[77, 1] ^= 1
    assert pcm_sha256(changed) != pcm_sha256(pcm)


def test_a_flac_cut_short_is_an_error_in_words() -> None:
    flac = encode_flac(noise(), 48000)
    for cut in (flac[: len(flac) // 2], flac[:-100], flac[:10], b"", b"not a flac file"):
        with pytest.raises(NodeError, match="FLAC"):
            decode_flac(cut)


def test_a_flipped_bit_in_a_flac_never_passes_the_hash() -> None:
    flac, digest = encode_flac(noise(), 48000), pcm_sha256(noise())
    for place in range(200, len(flac), len(flac) // 20):
        damaged = bytearray(flac)
        damaged[place] ^= 4
        try:
            found = pcm_sha256(decode_flac(bytes(damaged))[0])
        except NodeError:
            continue
        assert found != digest


@pytest.mark.parametrize("song_id", HARSH_IDS)
def test_member_names_hold_nothing_of_the_id(song_id: str) -> None:
    name = member_name(song_id, 1, "mixed")
    key, rendition, stem, ending = name.split(".")
    assert len(key) == 16 and set(key) <= set("0123456789abcdef")
    assert (rendition, stem, ending) == ("r1", "mixed", "flac")


def test_member_names_differ_by_id_rendition_and_stem() -> None:
    names = {member_name(i, r, s) for i in HARSH_IDS for r in (0, 1) for s in ("mixed", "vocal")}
    assert len(names) == len(HARSH_IDS) * 4


def test_tars_are_plain_and_say_nothing_of_when_and_where(tmp_path: Path) -> None:
    files = [("a.r0.mixed.flac", b"x" * 700), ("b.r0.mixed.flac", b""), ("c.r0.mixed.flac", b"y" * 512)]
    path = tar_of(tmp_path / "t.tar", *files)
    assert path.stat().st_size % tarfile.RECORDSIZE == 0
    with tarfile.open(path) as archive:
        assert [(m.name, m.size, m.mtime, m.uid, m.gid, m.uname) for m in archive] == [
            (name, len(content), 0, 0, 0, "") for name, content in files
        ]
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    assert path.read_bytes() == written.getvalue()


def test_members_are_read_back(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "t.tar", ("a", b"x" * 700), ("b", b"yy"))
    assert read_members(path) == {"a": 700, "b": 2}
    assert read_member(path, "b") == b"yy"
    with pytest.raises(NodeError, match="no member c"):
        read_member(path, "c")


def test_a_tar_cut_short_or_missing_is_an_error_in_words(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "t.tar", ("a", b"x" * 20000), ("b", b"y" * 20000))
    whole = path.read_bytes()
    data_end = 2 * 512 + 2 * 20480
    for size in (0, 100, 512, 5000, 20992, 21504, 30000, data_end - 1, data_end, data_end + 600):
        path.write_bytes(whole[:size])
        with pytest.raises(NodeError, match="not readable"):
            read_members(path)
    path.unlink()
    with pytest.raises(NodeError, match="not readable"):
        read_members(path)
    with pytest.raises(NodeError, match="not readable"):
        read_member(path, "a")
