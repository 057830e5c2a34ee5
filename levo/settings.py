"""Every setting of a run, as frozen models: name, type, unit, default, and one sentence.

config.yaml says WHAT is made and what passes; a profile says WHERE it runs. `config/config.yaml` and
`workflow/schemas/config.schema.yaml` are generated from these models (`make fix`) and never edited by hand.
A RUN keeps its settings in results/RUN/config.json; they are frozen once the RUN has shards.
"""

import difflib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from levo.disk import write_json
from levo.errors import ConfigError


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PlanSettings(_Section):
    """How the songs are spread over shards."""

    n_shards: int = Field(4, ge=1, description="Shards, that is node jobs. Static, so that a dry run shows every job.")
    length_model: str | None = Field(
        None, description="File with fitted length parameters (`levo fit-length`); null: the built-in ones."
    )


class SamplingSettings(_Section):
    """How tokens are drawn. Codebook 0 is sampled, codebooks 1 and 2 are greedy (facts of LeVo 2)."""

    temperature: float = Field(0.9, ge=0, description="Divides the logits of codebook 0; 0 means greedy.")
    top_k: int = Field(50, ge=1, description="Ids kept in codebook 0; ties with the k-th are kept too.")
    cfg: float = Field(1.5, ge=0, description="Guidance: uncond + cfg * (cond - uncond).")
    penalty: float = Field(1.1, gt=0, description="Logits of the ids in the window are divided by this.")
    window: int = Field(50, ge=1, description="Frames that the repetition penalty looks back.")


class EngineSettings(_Section):
    """How the language model runs on one rank."""

    slots: int | None = Field(
        None, ge=1, le=64, description="Songs decoded at once on one rank, at most; null: 64 on a GPU, 8 on a CPU."
    )
    gemm_rows: int | None = Field(
        None, ge=16, description="Fixed row count of every decode GEMM; null: 128 on a GPU, 16 on a CPU."
    )
    memory_gib: float | None = Field(
        None, gt=0, description="GiB of the device that a rank may use; null: all that is free at its start."
    )


class CodecSettings(_Section):
    """How tokens become audio."""

    steps: int = Field(10, ge=1, description="Euler steps of the flow (upstream: 10 since v2, 50 before).")
    guidance: float = Field(1.5, ge=0, description="Guidance of the flow (upstream: 1.5, fixed).")


class NodeSettings(_Section):
    """One shard on one node."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: every GPU of the job, else the CPU.")
    ranks: int | None = Field(None, ge=1, description="Rank processes; null: one a GPU, or one on a CPU.")
    ranks_per_gpu: int = Field(
        1, ge=1, description="Ranks that may share a GPU, its memory split evenly; each is billed as a GPU of its own."
    )
    dtype: Literal["auto", "float32", "float16"] = Field("auto", description="auto: float16 on a GPU, else float32.")
    part_songs: int = Field(4, ge=1, description="Songs of a rank that are committed together as one part.")
    part_seconds: float = Field(60, gt=0, description="A part is committed at the latest after this many seconds.")
    lease_wait_s: float = Field(120, ge=0, description="How long a second writer waits for the first one's lease.")
    retries: int = Field(2, ge=0, description="Tries again within the shard after the loss of a rank or an I/O error.")


class LimitSettings(_Section):
    """What is refused, and when a shard counts as failed."""

    max_seconds: float = Field(270, gt=0, description="Longest song; a row may ask for less (max_seconds), not more.")
    failed_share: float = Field(0.004, ge=0, le=1, description="A shard with a larger share of failed songs fails.")


class QaSettings(_Section):
    """Thresholds of the audio flags."""

    active_dbfs: float = Field(-40, le=0, description="A 50 ms window is active above this RMS, in dBFS.")
    min_active_share: float = Field(0.5, ge=0, le=1, description="Flag `inactive` below this share of windows.")
    max_clipped_share: float = Field(0.001, ge=0, le=1, description="Flag `clipped` above this share of samples.")
    max_dc: float = Field(0.02, ge=0, description="Flag `dc` above this absolute mean, full scale = 1.")
    max_silence_s: float = Field(8, gt=0, description="Flag `gap` for a longer silence, in seconds.")
    min_lufs: float = Field(-40, description="Flag `quiet` below this integrated loudness, in LUFS.")
    max_lufs: float = Field(-5, description="Flag `loud` above this integrated loudness, in LUFS.")


class CostSettings(_Section):
    """What a node is, for the bill."""

    gpus_per_node: int = Field(4, ge=1, description="GPUs of a node; all are billed.")
    cores_per_node: int = Field(288, ge=1, description="Cores of a node (GH200 x 4: 4 x 72).")
    calibration: str = Field("config/calibration.brief.json", description="Speed file that estimates and plans read.")


class Settings(_Section):
    """All settings of a RUN."""

    run: str = Field("demo", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name; files go to results/RUN.")
    manifest: str = Field("config/songs.example.jsonl", description="JSONL, CSV or Parquet, plain or .gz.")
    model: str = Field("models/tiny", description="Model directory (`levo model tiny DIR` writes a small one).")
    seed: int = Field(0, ge=0, lt=2**63, description="Songs without a seed get one from this and their id.")
    plan: PlanSettings = PlanSettings()
    sampling: SamplingSettings = SamplingSettings()
    engine: EngineSettings = EngineSettings()
    codec: CodecSettings = CodecSettings()
    node: NodeSettings = NodeSettings()
    limits: LimitSettings = LimitSettings()
    qa: QaSettings = QaSettings()
    cost: CostSettings = CostSettings()


# Settings that shape the songs: a RUN with shards may not change them.
SHAPING = (
    "run",
    "manifest",
    "model",
    "seed",
    "plan",
    "sampling",
    "codec",
    "limits.max_seconds",
    "engine.gemm_rows",
    "node.dtype",
)


def load(config: dict[str, Any], *, where: str = "config") -> Settings:
    """Check a plain dict of settings. Raises ConfigError with the setting, and the nearest name if it is unknown."""
    try:
        return Settings.model_validate(config)
    except ValidationError as error:
        raise _explain(error, where) from None


def read(path: Path) -> Settings:
    """Read settings from a YAML or JSON file."""
    import yaml  # late: the ground floor is imported by every command

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise ConfigError("no such settings file", where=str(path), fix="give an existing file with --config") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"not readable as YAML: {error}", where=str(path), fix="mend that line") from None
    if not isinstance(content, dict):
        raise ConfigError(
            "settings must be a mapping of names to values", where=str(path), fix="see config/config.yaml"
        )
    return load(content, where=str(path))


def refuse_change(settings: Settings, run_dir: Path) -> None:
    """Raise ConfigError if the RUN has shards and these settings would have shaped its songs differently."""
    target = run_dir / "config.json"
    if not target.exists() or not any((run_dir / "work").glob("*/*")):
        return
    old, new = _stored(target), settings.model_dump()
    changed = [name for name in SHAPING if _value(old, name) != _value(new, name)]
    if changed:
        raise ConfigError(
            f"settings that shape songs changed after songs were made: {', '.join(changed)}",
            where=str(target),
            fix=f"put the old values back, or start a new RUN (setting `run`, now {settings.run!r})",
        )


def _stored(path: Path) -> Any:
    """What a RUN's config.json holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        fix = "put the file back; if the RUN has no songs yet, delete it"
        raise ConfigError(f"not readable as JSON: {error}", where=str(path), fix=fix) from None


def _value(settings: dict[str, Any], name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def freeze(settings: Settings, run_dir: Path) -> None:
    """Write results/RUN/config.json, or refuse: what shapes songs may not change once the RUN has shards."""
    refuse_change(settings, run_dir)
    target = run_dir / "config.json"
    new = settings.model_dump()
    if target.exists() and _stored(target) == new:
        return
    write_json(target, new)


def of_run(run_dir: Path) -> Settings:
    """The settings that a RUN was started with."""
    path = run_dir / "config.json"
    if not path.exists():
        raise ConfigError(
            "this folder is not a RUN: it has no config.json",
            where=str(run_dir),
            fix="give results/RUN, made by snakemake or by `levo start`",
        )
    return read(path)


def _explain(error: ValidationError, where: str) -> ConfigError:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _names(first["loc"][:-1])
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
        fix = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
        return ConfigError(f"unknown setting `{name}`", where=where, fix=fix)
    return ConfigError(
        f"setting `{name}` = {first['input']!r}: {first['msg'].lower()}", where=where, fix="see config/config.yaml"
    )


def _names(path: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Settings
    for part in path:
        annotation = model.model_fields[str(part)].annotation
        assert isinstance(annotation, type) and issubclass(annotation, BaseModel)
        model = annotation
    return list(model.model_fields)


def as_yaml() -> str:
    """config/config.yaml: every setting with its default, and its sentence as a comment."""
    lines = ["# Generated from levo/settings.py by `make fix`; edit there. Your own values: --config or --configfile."]
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, _Section):
            section = type(field.default)
            lines += ["", f"# {section.__doc__}", f"{name}:"]
            for key, inner in section.model_fields.items():
                lines += [f"  # {inner.description}", f"  {key}: {json.dumps(inner.default)}"]
        else:
            lines += [f"# {field.description}", f"{name}: {json.dumps(field.default)}"]
    return "\n".join(lines) + "\n"


def as_schema() -> str:
    """workflow/schemas/config.schema.yaml: the same as JSON schema."""
    import yaml

    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Settings.model_json_schema()}
    return "# Generated from levo/settings.py by `make fix`.\n" + yaml.safe_dump(schema, sort_keys=False, width=110)
