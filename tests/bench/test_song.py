"""`levo bench song`: its figures follow from its counters, its songs are whole, and a leak is seen."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from levo.bench import song, song_soak
from levo.bench.device import covered
from levo.bench.song import Extras, Mark, speed_between
from levo.bench.song_line import Line, Load, held_parts
from levo.bench.song_model import LOUDNESS, random_model_of
from levo.errors import ConfigError, NodeError
from levo.model import tiny
from levo.model.codec_config import VAEConfig
from levo.model.config import LMConfig
from levo.node.parts import read_parts
from levo.node.paths import RunPaths


@pytest.fixture(scope="module")
def random_tiny():
    """A model like the full-size bench's, small: no song ends before its cap."""
    torch.set_num_threads(1)
    codec = tiny.codec_config(VAEConfig.from_upstream(tiny.VAE_CONFIG))
    return random_model_of(LMConfig.from_upstream(tiny.CONFIG), codec, torch.device("cpu"), torch.float32)


@pytest.fixture
def line(random_tiny, tmp_path):
    with Line(Load(20, 40, slots=3), *random_tiny, tmp_path / "run") as line:
        yield line


def mark(at_s=0.0, **more) -> Mark:
    nothing = dict.fromkeys(Mark.__dataclass_fields__, 0)
    return Mark(**{**nothing, "stages": {}, "joules": None, **more, "at_s": at_s})


STEADY = {"prefill": 2.0, "main": 40.0, "sub": 20.0, "flow": 20.0, "vae": 10.0, "encode": 0.5, "idle": 7.5}


def test_in_steady_state_the_speed_is_what_counting_gives() -> None:
    """100 s of a machine that makes 25 frames of both phases a tick-second: 4000 s of audio, 40 songs of 100 s."""
    end = mark(
        100.0, stages=STEADY, main_frames=100_000, sub_frames=100_000, prefills=80, frames_done=100_000, n_done=40,
        joules=70_000.0,
    )  # fmt: skip
    speed = speed_between(mark(joules=0.0), end)
    assert speed.x_realtime == pytest.approx(40) == pytest.approx(speed.x_realtime_counted)
    assert sum(speed.stage_s.values()) == pytest.approx(1 / 40)
    assert speed.song_s == pytest.approx(100) and speed.host_idle_share == pytest.approx(0.075)
    assert speed.joules_a_second == pytest.approx(17.5)


def test_a_song_more_or_less_at_the_edge_changes_only_what_is_counted() -> None:
    """Twice as many songs ended by luck, and were rendered: decode was no faster."""
    end = mark(
        100.0, stages=STEADY, main_frames=100_000, sub_frames=100_000, prefills=80, frames_done=100_000, n_done=40
    )
    stages = {**STEADY, "flow": 40.0, "vae": 20.0, "encode": 1.0}
    lucky = replace(end, stages=stages, frames_done=200_000, n_done=80, prefills=80, at_s=130.5)
    usual, found = speed_between(mark(), end), speed_between(mark(), lucky)
    for stage in ("main", "sub", "flow", "vae"):
        assert {s.stage: s.a_second for s in found.stages}[stage] == pytest.approx(
            {s.stage: s.a_second for s in usual.stages}[stage]
        )
    assert found.x_realtime_counted > 1.5 * usual.x_realtime_counted


def test_a_span_without_a_song_is_no_measurement() -> None:
    with pytest.raises(ConfigError, match="no song ended in 5 s"):
        speed_between(mark(), mark(5.0))


def test_the_verb_prints_its_figures_last(tiny_dir, capsys) -> None:
    song.run(Load(30, 60, slots=3, model=tiny_dir), Extras(3.0, baselines=True))
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    wanted = ("x_realtime", "s_per_song", "songs_per_hour", "peak_memory_gib", "free_share", "joules_per_song",
              "gpu_hours_per_million_3min", "idle_share", "stage_s_per_audio_s", "soak")  # fmt: skip
    assert [name for name in wanted if name not in result] == []
    assert result["gpu_hours_per_million_3min"] == pytest.approx(50_000 / result["x_realtime"])
    assert result["songs_per_hour"] * result["s_per_song"] == pytest.approx(3600)
    shares = sum(result["stage_share"].values()) + result["host_idle_share"]
    assert shares == pytest.approx(1, abs=0.02), "every second of the span is somewhere"
    way = result["baselines"]["recipe"]
    seconds = way["tokens_s"] + way["codec_s"] + way["file_s"]
    assert way["x_realtime"] == pytest.approx(45 / 25 / seconds)
    assert result["ours_over_recipe"] == pytest.approx(result["x_realtime"] / way["x_realtime"])


def test_songs_are_written_whole_and_as_long_as_asked(line, tmp_path) -> None:
    songs = [line.supply.song(frames, renditions=1 + frames % 2) for frames in (20, 31)]
    line.make([line.supply.request(one) for one in songs])
    parts = read_parts(RunPaths(tmp_path / "run").shard(0))
    rows = {row["line"]: row for part in parts for row in part.rows}
    assert [rows[one.line]["frames"] for one in songs] == [20, 31]
    assert [len(rows[one.line]["files"]) for one in songs] == [1, 2]
    assert all(len(line.hashes[one.line]) == one.renditions for one in songs)


def test_random_songs_are_about_as_loud_as_real_ones(random_tiny) -> None:
    """A silent song would be packed and hashed in no time."""
    model, _ = random_tiny
    wave = model.vae.decode(torch.randn(model.config.codec.latent_dim, 100))
    assert 0.5 * LOUDNESS < float(wave.square().mean().sqrt()) < 2 * LOUDNESS


def test_steady_state_has_every_slot_taken_and_every_page_in_somebodys_hands(line) -> None:
    line.warm_up()
    decoder = line.decoder
    assert len(decoder.main.seats) == 3 and len(decoder.sub.seats) >= 2
    counts = {seat.count for seat in decoder.main.seats.values()}
    assert len(counts) > 1, "songs that stand at one position would all end together"
    for _ in range(60):
        line.step()
        units, hidden = held_parts(decoder)
        assert units + len(decoder.setup.kv.free) == decoder.setup.kv.n_parts
        assert hidden + len(decoder.setup.hidden.free) == decoder.setup.hidden.n_parts
    assert line.n_done > 1


def test_a_failed_song_ends_the_bench(line) -> None:
    request = line.supply.request(line.supply.song(20))
    with pytest.raises(NodeError, match="a song failed"):
        line.make([replace(request, max_frames=10**6)])
    line.decoder.queue.clear()


def test_a_leak_is_seen(line, monkeypatch) -> None:
    monkeypatch.setattr(song_soak, "EVERY_S", 0.0)
    line.warm_up()
    soak = song_soak.Soak(line)
    for _ in range(6):
        line.step()
        soak.look()
    good = soak.verdict()
    assert good is not None and good["pages"] and good["handles"] and good["queues"]
    assert all(look["decode_tb_s"] > 0 for look in good["looks"])
    line.decoder.setup.kv.take(1)
    line.step()
    soak.look()
    bad = soak.verdict()
    assert bad is not None and not bad["pages"] and not bad["flat"]


@pytest.mark.parametrize(("name", "slow"), [("decode", "decode_tb_s"), ("codec", "windows_a_second")])
def test_a_slowdown_is_seen(line, monkeypatch, name: str, slow: str) -> None:
    monkeypatch.setattr(song_soak, "EVERY_S", 0.0)
    line.warm_up()
    soak = song_soak.Soak(line)
    line.step()
    soak.look()
    as_it_was = replace(soak.looks[0], decode_tb_s=4.0, windows_a_second=12.0)
    soak.looks = [as_it_was] * 3 + [replace(as_it_was, **{slow: 0.96 * getattr(as_it_was, slow)})] * 3
    verdict = soak.verdict()
    assert verdict is not None and not verdict[name] and not verdict["flat"]


def test_a_short_run_has_no_verdict(line) -> None:
    assert song_soak.Soak(line).verdict() is None


def test_time_that_two_kernels_share_is_covered_once() -> None:
    spans = np.array([[0, 10], [5, 10], [20, 5], [22, 1], [40, 10]])
    share, whole = covered(spans[::-1])
    assert share == pytest.approx(30 / 50) and whole == pytest.approx(50e-9)


def test_lengths_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="SHORTEST"):
        song.run(Load(50, 40), Extras(1.0))
