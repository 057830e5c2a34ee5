"""calibration.json: this RUN's own speeds, in the format that estimates and plans read. Knows no page.

The four figures give back the RUN's own GPU-seconds of songs: predicted from its real lengths they add up to what was
measured. Idle and lost work are not in them, since they belong to the end of a shard and to accidents.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from levo.reports.cost import CODEC_STAGES, DISK_STAGES, made_seconds
from levo.reports.gather import Run, counts, numbers
from levo.songs.plan import Calibration
from levo.songs.song import STEMS


def calibrate(run: Run, estimate: Mapping[str, Any]) -> Calibration | None:
    """Speeds measured on the songs that are ok; None when there is nothing to measure on.

    A prefill costs the same for every song. Ticks are taken as proportional to a song's seconds; codec, encoding and
    writing to the seconds of its files. upstream_x_realtime is the estimate's: upstream's loop was not run.
    """
    ok = run.ok
    if not ok.num_rows:
        return None
    seconds = numbers(ok, "seconds")
    stems = np.array([len(STEMS[kind]) for kind in ok["gen_type"].to_pylist()])
    file_s = float((seconds * stems * numbers(ok, "renditions")).sum())
    language = sum(numbers(ok, f"{stage}_s").sum() for stage in ("main", "sub")) / seconds.sum()
    codec = sum(numbers(ok, f"{stage}_s").sum() for stage in (*CODEC_STAGES, *DISK_STAGES)) / file_s
    if not language + codec > 0:
        return None
    n_ranks = sum(attempt["ranks"] for bill in run.bills for attempt in bill.attempts)
    devices = counts(ok["gpu_name"]) or {"CPU ranks": 1}
    name, slots, steps = next(iter(devices)), int(numbers(ok, "batch_size").max()), run.settings.codec.steps
    return Calibration(
        name=f"measured: {name}, {slots} slots, {steps} flow steps",
        source=f"RUN {run.settings.run}: {ok.num_rows} songs, {made_seconds(ok):.0f} s of audio",
        x_realtime=float(1 / (language + codec)),
        upstream_x_realtime=estimate["upstream"]["x_realtime"],
        codec_share=float(codec / (language + codec)),
        seconds_per_song=float(numbers(ok, "prefill_s").mean()),
        load_seconds=sum(bill.load_s for bill in run.bills) / max(1, n_ranks),
    )
