"""The `levo bench` verbs: types, defaults and printing. Imports nothing heavy before a verb runs."""

from pathlib import Path
from typing import Annotated

import typer

bench_app = typer.Typer(help="How fast it is on this machine, with random weights.", no_args_is_help=True)

SWEEPS = Path("results/bench/sweep")
Cluster = Annotated[str, typer.Option(help="local: here, one after the other. slurm: a job each.")]
Profile = Annotated[str | None, typer.Option(help="Profile whose node jobs' resources a job gets, as gh200.")]
Sbatch = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME[=VALUE]", help="Option of sbatch, as gres=gpu:1; goes over the profile's. May repeat."),
]
Made = Annotated[Path, typer.Argument(metavar="DIR", help="Model directory.")]
Checkpoint = Annotated[Path, typer.Option(help="Upstream's checkpoint folder: config.yaml and weights.")]
Frames = Annotated[tuple[int, int], typer.Argument(metavar="SHORTEST LONGEST", help="Frames of the songs.")]
Slots = Annotated[int, typer.Option(min=1, max=64)]
Seconds = Annotated[float, typer.Option(min=1, help="How long the steady state is timed.")]
MemoryGib = Annotated[float | None, typer.Option(help="As if the device had no more, in GiB.")]
Steps = Annotated[int, typer.Option(min=1, help="Euler steps of the flow.")]
ModelDir = Annotated[Path | None, typer.Option(help="Model directory; default: random weights at full size.")]
Runtime = Annotated[Path, typer.Option(help="Upstream's runtime folder: ckpt/, third_party/, conf/, tools/.")]


@bench_app.command("decode")
def bench_decode(
    sizes: Annotated[list[str], typer.Argument(metavar="SLOTSxPOSITIONS...", help="For example 16x3200 32x3200.")],
) -> None:
    """Time a tick of each phase: milliseconds, bytes a second, share of copy bandwidth."""
    from levo.bench import decode

    decode.run([_size(text) for text in sizes])


@bench_app.command("profile")
def bench_profile(size: Annotated[str, typer.Argument(metavar="SLOTSxPOSITIONS")] = "16x3200") -> None:
    """List a tick's kernels with their time and share."""
    from levo.bench import profile

    profile.run(*_size(size))


@bench_app.command("lm")
def bench_lm(
    frames: Frames,
    slots: Slots = 48,
    seconds: Seconds = 60,
    memory_gib: MemoryGib = None,
    sync_ticks: Annotated[int, typer.Option(min=1, help="Ticks between two looks at the device.")] = 8,
    cold: Annotated[bool, typer.Option(help="Start with empty slots.")] = False,
    baselines: Annotated[bool, typer.Option(help="Time the recipe and upstream's loop beside it.")] = True,
) -> None:
    """Run songs through the whole language model in steady state, beside the public ways."""
    from levo.bench import lm

    lm.run(lm.Load(slots, *frames, seconds, memory_gib, sync_ticks, cold), baselines=baselines)


@bench_app.command("song")
def bench_song(
    frames: Frames,
    slots: Slots = 48,
    seconds: Seconds = 60,
    memory_gib: MemoryGib = None,
    steps: Steps = 10,
    model: ModelDir = None,
    profile: Annotated[float, typer.Option(min=0, help="Seconds under the profiler, for the idle share.")] = 0,
    baselines: Annotated[bool, typer.Option("--baselines", help="Time the recipe and upstream's loop beside.")] = False,
) -> None:
    """Run songs from lyrics to FLAC on disk in steady state: speed, memory, energy, cost."""
    from levo.bench import song
    from levo.bench.song_line import Load

    load = Load(*frames, slots=slots, memory_gib=memory_gib, steps=steps, model=model)
    song.run(load, song.Extras(seconds, profile, baselines))


@bench_app.command("calibrate")
def bench_calibrate(
    speeds: Annotated[Path, typer.Argument(metavar="CALIBRATION", help="Speed file; made if there is none.")],
    outputs: Annotated[list[Path], typer.Argument(metavar="OUTPUT...", help="What `levo bench song` printed.")],
) -> None:
    """Put what `levo bench song` measured into the speed file that estimates and plans read."""
    from levo.bench.song_calibration import calibrate

    print(calibrate(speeds, outputs))


@bench_app.command("ablation")
def bench_ablation(
    frames: Frames,
    slots: Slots = 48,
    seconds: Seconds = 20,
    memory_gib: MemoryGib = None,
    steps: Steps = 10,
    model: ModelDir = None,
) -> None:
    """List what each change is worth, from upstream's loop through the public recipe to ours."""
    from levo.bench import ablation
    from levo.bench.song_line import Load

    ablation.run(Load(*frames, slots=slots, memory_gib=memory_gib, steps=steps, model=model), seconds)


@bench_app.command("stages")
def bench_stages(
    caps: Annotated[list[int], typer.Argument(metavar="FRAMES...", min=1, help="Caps on the song, shortest first.")],
    steps: Steps = 10,
    model: ModelDir = None,
) -> None:
    """Time one song's stages alone: caps, renditions, supplied tokens, two songs together."""
    from levo.bench import stages
    from levo.bench.song_line import Load

    stages.run(Load(caps[0], caps[-1], slots=2, steps=steps, model=model), caps)


@bench_app.command("codec")
def bench_codec(
    kernels: Annotated[bool, typer.Option(help="List the kernels of a step and of a window.")] = False,
) -> None:
    """Time flow, VAE and PCM of a window, beside the plain networks, with their errors against float32."""
    from levo.bench import codec

    codec.run(kernels=kernels)


def _size(text: str) -> tuple[int, int]:
    slots, _, positions = text.partition("x")
    if not (slots.isdigit() and positions.isdigit()):
        raise typer.BadParameter(f"{text!r} is not SLOTSxPOSITIONS, as 16x3200")
    return int(slots), int(positions)


@bench_app.command("checkpoint")
def bench_checkpoint(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the checkpoint and its runtime.")],
    vocabulary: Annotated[Path, typer.Option(help="Folder with Qwen2's vocab.json and merges.txt.")],
    size: Annotated[str, typer.Option(help="v2-large, v2-medium or v1-base.")] = "v2-large",
) -> None:
    """Write a checkpoint of random weights in upstream's layout, at full size."""
    from levo.bench.random_checkpoint import write_random

    print(*write_random(out, size, vocabulary), sep="\n")


@bench_app.command("load")
def bench_load(model: Made, checkpoint: Checkpoint, runtime: Runtime) -> None:
    """Measure loading from the page cache, against torch.load and load_state_dict of the same weights."""
    from levo.bench.load import bench_load as measure

    print(measure(model, checkpoint, runtime))


@bench_app.command("sweep", context_settings={"allow_extra_args": True, "ignore_unknown_options": False})
def bench_sweep(
    frames: Annotated[str, typer.Argument(metavar="FRAMES", help="Lengths of songs: 4500, 750-6750, or 750,4500.")],
    context: typer.Context,
    slots: Annotated[str, typer.Option(help="Batch sizes, as 1,8,64; default: from 1 to the most.")] = "",
    cluster: Cluster = "local",
    profile: Profile = None,
    sbatch: Sbatch = None,
    minutes: Annotated[float, typer.Option(min=0.01, help="Limit of each batch size.")] = 30,
    out: Annotated[Path, typer.Option(help="Folder of the results; what is there is not run again.")] = SWEEPS,
) -> None:
    """Run `levo bench song` at every batch size, each alone. What stands after -- goes to it: ... -- --seconds 60.

    One that fails or finds no memory is a row with its reason, and is tried again by the next sweep.
    """
    from levo.bench import sweep
    from levo.bench.cluster import runner

    chosen = sweep.read_slots(slots) if slots else list(sweep.SLOTS)
    tasks = sweep.song_tasks(frames.split(","), chosen, context.args, minutes)
    raise typer.Exit(sweep.sweep(tasks, out, runner(cluster, profile, sbatch or []), _say))


def _say(line: str) -> None:
    print(line, flush=True)
