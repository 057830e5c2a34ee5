"""The command line: types, defaults and printing. What a verb does lies in a room, imported when the verb runs.

A LevoError is printed as its lines, without a traceback, and ends with its exit code (levo/errors.py).
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from levo import __version__
from levo.bench.verbs import Checkpoint, Made, Profile, Runtime, Sbatch, bench_app
from levo.errors import EXIT_DIFFERENT, ConfigError, LevoError, ManifestError, refusal
from levo.settings import Settings

DEFAULTS = Settings()
CONFIG = Path("config/config.yaml")

app = typer.Typer(
    help="Turns lyrics into songs with LeVo 2, says how each was made, and what it cost.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
model_app = typer.Typer(help="Model directories.", no_args_is_help=True)
app.add_typer(model_app, name="model")
app.add_typer(bench_app, name="bench")

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, results/RUN.")]
Shard = Annotated[int, typer.Argument(metavar="SHARD", min=0, help="Number of the shard.")]
ModelDir = Annotated[Path | None, typer.Option("--model", help="Model directory; default: the one recorded.")]


def main() -> None:
    """Run a verb; say what a user can mend in plain lines."""
    try:
        app()
    except (LevoError, OSError) as error:
        known = refusal(error) if isinstance(error, OSError) else error
        if known is None:
            raise
        print(known, file=sys.stderr)
        raise SystemExit(known.exit_code) from None


def _version(wanted: bool) -> None:
    if wanted:
        print(f"levo {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Options of every verb."""


@app.command()
def start(config: Annotated[Path, typer.Option(help="Settings, as config/config.yaml.")]) -> None:
    """Freeze settings into results/RUN/config.json. Snakemake does the same at its start."""
    from levo import settings

    chosen = settings.read(config)
    run_dir = Path("results") / chosen.run
    settings.freeze(chosen, run_dir)
    print(f"{run_dir}/config.json: manifest {chosen.manifest}, model {chosen.model}, {chosen.plan.n_shards} shards")


@app.command()
def check(
    manifest: Annotated[Path, typer.Argument(help="JSONL, CSV or Parquet, plain or .gz.")],
    out: Annotated[Path, typer.Option(help="Folder for songs.parquet and rejected.parquet.")],
    config: Annotated[Path | None, typer.Option(help="Settings; default: those of the RUN around --out.")] = None,
    model: ModelDir = None,
) -> None:
    """Sort a manifest into songs, and rows refused with their reason. Exit 2 only if no song is left."""
    from levo import settings
    from levo.songs.manifest import check as check_manifest
    from levo.songs.text import TextEncoder

    if config is not None:
        chosen = settings.read(config)
    else:
        chosen = settings.of_run(out.parent) if (out.parent / "config.json").exists() else DEFAULTS
    summary = check_manifest(manifest, out, TextEncoder(model or Path(chosen.model)), chosen)
    print(f"{summary.n_songs} songs, about {summary.predicted_hours:.1f} hours of audio: {out / 'songs.parquet'}")
    if summary.lyrics_ignored:
        print(f"{summary.lyrics_ignored} bgm songs have lyrics, which the model does not read")
    reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(summary.by_reason.items()))
    if summary.n_rejected:
        print(f"{summary.n_rejected} rows rejected ({reasons}): {out / 'rejected.parquet'}")
    if not summary.n_songs:
        raise ManifestError(
            f"no song is left: {summary.n_rejected} rows rejected ({reasons})" if reasons else "no row in it",
            where=str(manifest),
            fix=_first_remedies(out / "rejected.parquet"),
        )


def _first_remedies(rejected: Path, n: int = 3) -> str:
    """The first refused rows in words: Snakemake deletes the files of a check that failed."""
    import pyarrow.parquet as pq

    rows = pq.read_table(rejected, columns=["line", "sentence", "fix"]).slice(0, n).to_pylist()
    return "\n         ".join(f"line {row['line']}: {row['sentence']} {row['fix']}" for row in rows) or "add rows"


@app.command()
def plan(run: Run) -> None:
    """Spread the songs of a RUN over its shards: equal predicted GPU time, nothing lost, nothing twice."""
    from levo.songs.plan import plan_run

    print(plan_run(run))


@app.command()
def estimate(run: Run) -> None:
    """Say what a planned RUN will cost, before it runs; writes plan/estimate.json."""
    from levo.reports.estimate import estimate_run

    print(estimate_run(run))


@app.command()
def shard(run: Run, number: Shard) -> None:
    """Make the songs of one shard that are still missing. Exit 75: stopped early on purpose, run it again."""
    from levo.node.shard import run_shard

    raise typer.Exit(run_shard(run, number))


@app.command()
def qa(
    run: Run,
    number: Shard,
    processes: Annotated[int, typer.Option(min=1, help="Files measured at once; 0.8 GB of memory each.")] = 1,
) -> None:
    """Measure the audio of a finished shard, from the files on disk."""
    from levo.reports.qa import qa_shard

    qa_shard(run, number, processes)
    print(f"{run}/qa/{number:05d}.parquet")


@app.command()
def report(run: Run) -> None:
    """Write the bill, the QA summary and the page of a RUN."""
    from levo.reports.report import report_run

    print(report_run(run))


@app.command()
def status(run: Run) -> None:
    """Say how far a RUN is, from its files alone; for `watch -n 10 levo status RUN`."""
    from levo.reports.status import read_status
    from levo.reports.status_text import text_of

    print(text_of(read_status(run)))


@app.command()
def accounting(run: Run) -> None:
    """Ask Slurm what it allocated to a RUN, keep the answer, and compare it with the ranks' ledgers."""
    from levo.reports.accounting_text import text_of
    from levo.reports.report import account_slurm

    slurm = account_slurm(run)
    print("no shard of this RUN was a Slurm job" if slurm is None else text_of(slurm))


@app.command()
def retry(run: Run) -> None:
    """Mark the failed songs of a RUN to be made again; then run snakemake again."""
    from levo.node.retry import retry_run

    print(f"{retry_run(run)} failed songs will be made again by the next snakemake")


@app.command()
def verify(
    provenance: Annotated[Path, typer.Argument(help="provenance.parquet of a shard.")],
    songs: Annotated[int, typer.Option(min=1, help="Songs to make again.")] = 1,
    model: ModelDir = None,
) -> None:
    """Make songs again from their provenance rows alone and compare them bit for bit. Exit 5 if any differ."""
    from levo.node.verify import verify as verify_songs

    summary = verify_songs(provenance, songs, model)
    print(summary)
    if summary.different:
        raise typer.Exit(EXIT_DIFFERENT)


@app.command()
def render(
    tokens: Annotated[Path, typer.Argument(help="tokens.parquet of a shard.")],
    out: Annotated[Path, typer.Option(help="Folder for the audio.")],
    song: Annotated[list[str] | None, typer.Option(help="Only this song id; may be given again.")] = None,
    model: ModelDir = None,
) -> None:
    """Make audio from stored tokens, without the language model."""
    from levo.node.render import render as render_tokens

    print(render_tokens(tokens, out, model, song))


@app.command()
def sing(
    lyrics: Annotated[str, typer.Argument(help='As in a manifest: "[verse] words ; [chorus] words".')],
    description: Annotated[str | None, typer.Option(help="Style, as in a manifest.")] = None,
    gen_type: Annotated[str, typer.Option(help="mixed, vocal, bgm or separate.")] = "mixed",
    model: Annotated[Path, typer.Option(help="Model directory.")] = Path(DEFAULTS.model),
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same song.")] = DEFAULTS.seed,
    out: Annotated[Path, typer.Option(help="Audio file to write.")] = Path("song.flac"),
    max_seconds: Annotated[float, typer.Option(help="Longest song.")] = DEFAULTS.limits.max_seconds,
) -> None:
    """Make one song here and now, with no manifest and no Snakemake."""
    from levo.node.sing import sing as sing_song

    print(sing_song(lyrics, description, gen_type, model, seed, out, max_seconds))


@app.command("fit-length")
def fit_length(
    provenance: Annotated[list[Path], typer.Argument(help="provenance.parquet of finished shards.")],
    out: Annotated[Path, typer.Option(help="File to write; name it in setting plan.length_model.")],
) -> None:
    """Fit the length prediction to songs that were made."""
    from levo.songs.length import fit_file

    fitted = fit_file(provenance, out)
    print(f"{out}: fitted to {fitted.fitted_songs} songs, error {fitted.rms_s or 0:.1f} s (root mean square)")


@model_app.command("tiny")
def model_tiny(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write.")],
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives other weights.")] = 0,
) -> None:
    """Write a tiny random model in the real layout. Its songs are noise, and end by themselves."""
    from levo.model.tiny import write_tiny

    write_tiny(out, seed)
    print(f"{out}/model.json")


@model_app.command("convert")
def model_convert(
    checkpoint: Checkpoint,
    runtime: Runtime,
    out: Annotated[Path, typer.Option(help="Model directory to write.")],
    dtype: Annotated[str, typer.Option(help="Of the language model: float16, or float32 for a CPU.")] = "float16",
) -> None:
    """Write upstream's checkpoint as a model directory; checks every tensor. Run it again after a kill: it goes on."""
    import torch

    from levo.model.convert import convert

    known = {"float16": torch.float16, "float32": torch.float32}
    if dtype not in known:
        raise ConfigError(f"no precision {dtype!r}", where="--dtype", fix=f"use one of {', '.join(known)}")
    print(convert(checkpoint, runtime, out, known[dtype]))


@model_app.command("inspect")
def model_inspect(
    model: Made,
    memory: Annotated[float, typer.Option(min=1, help="GPU memory in GiB to plan for.")] = 95,
    seconds: Annotated[float | None, typer.Option(min=1, help="Song length; default: several.")] = None,
) -> None:
    """Print what a model directory holds, and how many songs fit beside it on a GPU."""
    from levo.model.inventory import describe, inspect

    print(describe(inspect(model), memory, seconds))


@model_app.command("selfcheck")
def model_selfcheck(
    model: Made,
    fixture: Annotated[Path | None, typer.Option(help="Greedy tokens recorded with --record, maybe elsewhere.")] = None,
    record: Annotated[Path | None, typer.Option(help="File for this machine's greedy tokens.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Length of the songs made for it.")] = 10,
) -> None:
    """Check weights and machine together: hashes, known tokens, batch against single, precision. Exit 5 if bad."""
    from levo.bench.selfcheck import selfcheck

    checked = selfcheck(model, fixture, record, seconds)
    print(checked)
    if checked.against:
        raise typer.Exit(EXIT_DIFFERENT)


@app.command()
def doctor(
    model: Annotated[Path | None, typer.Option(help="Model directory that will be used.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that songs will be written to.")] = Path("results"),
    profile: Annotated[
        str | None, typer.Option(help="Profile that will be used: compared with what Slurm allows.")
    ] = None,
) -> None:
    """Say what works on this machine and what to mend. Exit 0: all well; 6: usable, with warnings; 4: not usable."""
    from levo.node.doctor import doctor as look

    diagnosis = look(model, out, profile)
    print(diagnosis)
    raise typer.Exit(diagnosis.exit_code)


@app.command("rehearse-node")
def rehearse_node(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="RUN to rehearse for, results/RUN.")] = None,
    config: Annotated[Path, typer.Option(help="Settings to rehearse with, where there is no RUN yet.")] = CONFIG,
    cluster: Annotated[str, typer.Option(help="slurm: as one job on one node. local: on this machine.")] = "slurm",
    profile: Profile = None,
    sbatch: Sbatch = None,
    songs: Annotated[int, typer.Option(min=1, help="Songs to make; more of them fill more slots.")] = 8,
    minutes: Annotated[float, typer.Option(min=1, help="The job's limit.")] = 30,
    out: Annotated[Path | None, typer.Option(help="Empty folder for it; default: results/rehearsal/TIME.")] = None,
) -> None:
    """Try a whole campaign in small on one node: doctor, load, songs, QA, verify; what works, times, GPU-hours."""
    from levo.bench import rehearse

    wanted = rehearse.Wanted(run, config, profile, songs, rehearse.folder_of(out))
    code = wanted.here() if cluster == "local" else wanted.as_job(cluster, sbatch or [], minutes)
    raise typer.Exit(code)
