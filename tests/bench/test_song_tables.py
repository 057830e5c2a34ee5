"""`levo bench stages`, `ablation` and `calibrate`: equal songs are told equal, gains multiply, speeds are read back."""

import json
from dataclasses import replace

import pytest
import torch

from levo.bench import stages
from levo.bench.ablation import COMPOSED, MEASURED, Parts, Ticks, cumulative, share_prefix, without_one
from levo.bench.baselines import StepTime
from levo.bench.decode import stand
from levo.bench.song import Found, Speed, Stage
from levo.bench.song_calibration import calibrate
from levo.bench.song_line import Load
from levo.engine.build import make_setup
from levo.engine.main_phase import MainPhase
from levo.engine.memory import MemoryPlan
from levo.engine.request import Sampling
from levo.errors import ConfigError
from levo.settings import CodecSettings, EngineSettings, Settings
from levo.songs.plan import load_calibration


def test_stages_finds_equal_audio_and_saved_time(tiny_dir, capsys) -> None:
    stages.run(Load(30, 50, slots=2, model=tiny_dir), [30, 50])
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert result["all_equal"] and result["unequal"] == []
    takes = {take["what"]: take for take in result["rows"]}
    assert takes["tokens supplied"]["main_s"] == 0 == takes["tokens supplied"]["prefill_s"]
    assert takes["tokens supplied"]["same_audio"] is True
    assert takes["two renditions"]["frames"] == 60 and takes["two renditions"]["same_audio"] is True
    assert takes["both songs together"]["frames"] == 60 and takes["cap 2 s"]["frames"] == 50
    for take in result["rows"]:
        spent = sum(take[f"{stage}_s"] for stage in ("prefill", "main", "sub", "flow", "vae"))
        assert spent < take["all_s"]


def found(x_realtime: float) -> Found:
    stage_s = {
        "prefill": 0.0002,
        "main": 0.012,
        "sub": 0.004,
        "flow": 0.0025,
        "vae": 0.001,
        "encode": 1e-5,
        "write": 0.0,
    }
    lines = tuple(Stage(name, 0.0, 0.0, seconds, None) for name, seconds in stage_s.items())
    speed = Speed(60.0, 10, 180.0, x_realtime, x_realtime, 0.0, 0, None, lines)
    return Found(5.0, 9.0, speed, (45.0, 38.0), 0.25, 0.1, None, None, None, None)


PARTS = Parts(
    mean=4500, longest=4500, delay=250, codec_steps=10, n_windows=6,
    upstream=StepTime(1, 0.048, 0.001), batched=StepTime(16, 0.09, 0.002), static=StepTime(16, 0.06, 0.002),
    recipe=StepTime(16, 0.0225, 0.0015), flow_s=0.133, flow_50=0.66, vae_s=0.065,
    ticks=Ticks(0.0138, 0.0104, 0.0035, 0.024, 0.007, 0.0225, 0.0065, 0.03, 0.011), ours=found(50.0),
)  # fmt: skip


def test_gains_multiply_and_the_last_row_is_what_was_measured() -> None:
    rows = list(cumulative(PARTS))
    product = 1.0
    for row in rows[1:]:
        assert row.gain is not None and row.total_gain is not None
        product *= row.gain
        assert row.total_gain == pytest.approx(product)
    assert rows[-1].how == MEASURED and rows[-1].x_realtime == 50.0
    assert {row.how for row in rows[:-1]} == {COMPOSED}
    assert rows[-1].x_realtime / rows[0].x_realtime == pytest.approx(product)


def test_each_row_changes_its_own_thing() -> None:
    """A part that gets twice as fast moves the rows from where it comes in, and none before."""

    def moved(parts: Parts) -> int:
        pairs = zip(cumulative(PARTS), cumulative(parts), strict=True)
        return next(n for n, (old, new) in enumerate(pairs) if old.x_realtime != pytest.approx(new.x_realtime))

    names = [row.change for row in cumulative(PARTS)]
    halved = StepTime(16, 0.01, 0.0005)
    for parts, word in (
        (replace(PARTS, batched=halved), "+ batch"),
        (replace(PARTS, static=halved), "+ static cache"),
        (replace(PARTS, recipe=halved), "+ CUDA graph"),
        (replace(PARTS, flow_s=0.05), "+ 10 flow steps"),
        (replace(PARTS, ticks=replace(PARTS.ticks, fixed=0.01)), "+ length-aware"),
        (replace(PARTS, ticks=replace(PARTS.ticks, fixed_sub=0.002)), "+ two phases"),
        (replace(PARTS, ticks=replace(PARTS.ticks, main_own=0.02)), "+ pages"),
        (replace(PARTS, ticks=replace(PARTS.ticks, main=0.02)), "+ shared"),
    ):
        assert names[moved(parts)].startswith(word)
    drawn = replace(PARTS, longest=5500.0)  # a fixed batch waits for its longest song; rolling admission does not
    by_name = {row.change.partition(":")[0]: row for row in cumulative(drawn)}
    assert by_name["+ rolling admission"].gain == pytest.approx(1.2, abs=0.05)


def test_what_one_thing_is_worth_at_the_end() -> None:
    rows = {row.change: row for row in without_one(PARTS)}
    assert rows["ours at 50 flow steps"].song_s == pytest.approx(180 / 50 + 4 * 0.0025 * 180)
    assert all(row.gain is not None and row.gain > 1 for row in rows.values())


def test_rows_that_share_the_prefix_read_the_same_pages(tiny_dir) -> None:
    from levo.model import checkpoint

    model = checkpoint.load(tiny_dir, "cpu", torch.float32)
    assert model.lm is not None
    with torch.inference_mode():
        setup = make_setup(model.lm, model.pad_id, 16, Sampling(), MemoryPlan(400, 400))
        phase = MainPhase(setup, 3)
        stand(phase, 3, 800)
        before = phase.kv.device.clone()
        share_prefix(phase, 3)
    n_full = model.lm.config.prefix_len // 128
    assert n_full > 0
    for row in (3, 5):
        assert torch.equal(phase.kv.device[row, :n_full], before[1, :n_full])
        assert torch.equal(phase.kv.device[row, n_full:], before[row, n_full:])
    assert torch.equal(phase.kv.device[::2], before[::2])


def output(path, seconds=180.0, slots=48, steps=10, gpu="NVIDIA H200", main=0.012, **more):
    stage_s = {
        "prefill": 0.0002,
        "main": main,
        "sub": 0.004,
        "flow": 0.0025,
        "vae": 0.001,
        "encode": 1e-5,
        "write": 0.0,
    }
    result = {
        "card": {"gpu": gpu, "cpu": "some"}, "load": {"slots": slots, "steps": steps}, "seconds_of_a_song": seconds,
        "stage_s_per_audio_s": stage_s, "load_s": 6.0, "engine_s": 9.0, **more,
    }  # fmt: skip
    path.write_text("a table\n" + json.dumps(result) + "\n")
    return path


def test_measurements_are_put_together_and_read_by_a_plan(tmp_path) -> None:
    speeds = tmp_path / "calibration.json"
    baselines = {"upstream": {"x_realtime": 0.76}}
    calibrate(speeds, [output(tmp_path / "a", baselines=baselines), output(tmp_path / "b", seconds=30.0, main=0.005)])
    calibrate(speeds, [output(tmp_path / "c", slots=16, main=0.03)])
    made = load_calibration(speeds)
    assert (made.gpu, made.upstream_x_realtime, made.load_seconds) == ("NVIDIA H200", 0.76, 15.0)
    assert made.x_realtime == pytest.approx(1 / 0.01971)
    of_run = made.of(Settings(engine=EngineSettings(slots=40)))
    assert of_run.gpu_seconds(4500, 1, "mixed") == pytest.approx(180 * 0.01971)
    assert of_run.gpu_seconds(750, 1, "mixed") == pytest.approx(30 * 0.01271)
    assert of_run.gpu_seconds(750, 2, "separate") == pytest.approx(30 * (0.0092 + 6 * 0.00351))
    assert of_run.gpu_seconds(2625, 1, "mixed") == pytest.approx(105 * (0.01971 + 0.01271) / 2)
    assert of_run.gpu_seconds(6750, 1, "mixed") == pytest.approx(270 * 0.01971), "the nearest length beyond the ends"
    few = made.of(Settings(engine=EngineSettings(slots=8), codec=CodecSettings(steps=50)))
    assert few.gpu_seconds(4500, 1, "mixed") == pytest.approx(180 * (0.03771 + 4 * 0.0025))


def test_a_measurement_takes_the_place_of_its_like(tmp_path) -> None:
    speeds = tmp_path / "calibration.json"
    calibrate(speeds, [output(tmp_path / "a"), output(tmp_path / "b", seconds=181.0, main=0.011)])
    made = load_calibration(speeds)
    assert [point.stages["main"] for point in made.points] == [pytest.approx(181 * 0.011)]


def test_another_gpus_measurement_is_refused(tmp_path) -> None:
    speeds = tmp_path / "calibration.json"
    calibrate(speeds, [output(tmp_path / "a")])
    before = speeds.read_bytes()
    with pytest.raises(ConfigError, match="NVIDIA H200, and the output is of NVIDIA GH200"):
        calibrate(speeds, [output(tmp_path / "b", gpu="NVIDIA GH200")])
    assert speeds.read_bytes() == before


@pytest.mark.parametrize("text", ["", "no json", "{}", '{"load": 3}'])
def test_an_output_of_something_else_is_refused(tmp_path, text) -> None:
    (tmp_path / "out").write_text(text)
    with pytest.raises(ConfigError, match="no song bench's output"):
        calibrate(tmp_path / "calibration.json", [tmp_path / "out"])
