"""A shard of 64 songs on a GPU, real parts: each song's samples are the same alone, in company, rendered from its
tokens, and after kills with two and four ranks on the one GPU. With a tiny model and with one of the released size,
converted from a random checkpoint: three starts of `levo shard` each, about a minute and about five.
"""

import gc
import shutil
from collections import Counter
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
from fakes import shards
from fakes.shards import lasting, make_run, song

from levo.bench.random_checkpoint import write_random
from levo.engine.request import no_book
from levo.model.convert import convert
from levo.node.making import REAL, find_maker, recipe_of, request_of
from levo.node.remake import compare, song_of
from levo.node.render import render
from levo.node.seal import read_bill
from levo.node.verify import verify
from levo.settings import Settings, freeze, of_run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

DEVICE = "cuda"
SONGS = [song(n, max_seconds=2.0 + n % 7, predicted_frames=50 + 25 * (n % 7)) for n in range(64)]
# The process that runs the tests has a context of its own on the GPU, which a shard takes for somebody's work.
SHARED = "import levo.node.devices\nlevo.node.devices._refuse_busy = lambda names: None\n"


@pytest.fixture(scope="module", autouse=True)
def beside_the_tests():
    """What the tests before have left is given back: the shards' ranks see only what is free."""
    gc.collect()
    torch.cuda.empty_cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "DRIVE", SHARED + shards.DRIVE)
        yield


def settings(model, ranks: int = 1) -> Settings:
    return Settings.model_validate(
        {
            "model": str(model),
            "engine": {"slots": 16},
            "codec": {"steps": 2},
            "node": {
                "device": DEVICE, "ranks": ranks, "ranks_per_gpu": ranks, "part_songs": 4, "lease_wait_s": 1,
            },
        }
    )  # fmt: skip


@pytest.fixture(scope="module", params=["tiny", "full size"])
def model_dir(request, tmp_path_factory):
    if request.param == "tiny":
        return request.getfixturevalue("tiny_dir")
    folder = tmp_path_factory.mktemp("full")
    checkpoint, runtime = write_random(folder / "released", "v2-large", request.getfixturevalue("qwen_files"))
    convert(checkpoint, runtime, folder / "model", torch.float16)
    shutil.rmtree(folder / "released")
    return folder / "model"


@pytest.fixture(scope="module")
def sealed(tmp_path_factory, model_dir):
    """One rank, undisturbed."""
    run_dir = tmp_path_factory.mktemp("sealed")
    paths = make_run(run_dir, SONGS, settings(model_dir))
    code, said = shards.run(run_dir, maker=REAL)
    assert code == 0, said
    return paths


def rows_of(paths) -> dict[str, dict]:
    return {row["song_id"]: row for row in pq.read_table(paths.provenance).to_pylist()}


def test_every_song_made_again_in_company_is_equal(sealed):
    summary = verify(sealed.provenance, 64, None)
    assert (len(summary.equal), summary.different, summary.not_comparable) == (64, [], [])


def test_a_song_alone_in_one_slot_is_equal(sealed):
    rows = [rows_of(sealed)[song.song_id] for song in (SONGS[3], SONGS[20], SONGS[41])]
    recipe = replace(recipe_of(of_run(sealed.run_dir), DEVICE), slots=1)
    making = find_maker(REAL)(recipe, no_book)
    engine = making.new_engine()
    for key, row in enumerate(rows):
        engine.submit(request_of(song_of(row), key, making.encoder))
        done = []
        while engine.live:
            done += engine.step()
        assert [compare(row, song) for song in done] == [[]]


def test_a_song_rendered_from_its_tokens_is_equal(sealed, tmp_path):
    chosen = [SONGS[2].song_id, SONGS[3].song_id, SONGS[40].song_id]
    found = render(sealed.tokens, tmp_path, None, chosen)
    assert found.failed == []
    rows = rows_of(sealed)
    recorded = sorted(file["pcm_sha256"] for song_id in chosen for file in rows[song_id]["files"])
    assert sorted(digest for _, _, digest in found.files) == recorded


def test_kills_lose_nothing_and_the_bill_adds_up(sealed, tmp_path, model_dir):
    """Two ranks on the GPU until the shard is killed; then four, of which one is killed."""
    paths = make_run(tmp_path, SONGS, settings(model_dir, ranks=2))
    code, said = shards.run(tmp_path, maker=REAL, LEVO_FAULT="part.write:3:kill-shard")
    assert code == -9, said
    n_done = sum(pq.read_metadata(path).num_rows for path in paths.work.glob("part-*.parquet"))
    assert 0 < n_done < 64
    freeze(settings(model_dir, ranks=4), tmp_path)
    once = {"LEVO_FAULT": "part.write:1:kill", "LEVO_FAULT_ONCE": str(tmp_path / "once")}
    code, said = shards.run(tmp_path, maker=REAL, **once)
    assert code == 0 and f"resuming: {n_done} songs done" in said and "killed by SIGKILL" in said, said
    assert lasting(paths) == lasting(sealed)
    made_by = Counter((row["attempt"], row["rank"]) for row in rows_of(paths).values())
    assert sum(n for (attempt, _), n in made_by.items() if attempt == 1) == n_done
    assert len([rank for attempt, rank in made_by if attempt == 2]) >= 2, "others than the killed one"
    bill = read_bill(paths.provenance)
    assert bill.songs_s + bill.load_s + bill.idle_s + bill.lost_s == pytest.approx(bill.wall_s, rel=0.01)
    assert bill.lost_s > 0 and [a["ranks"] for a in bill.attempts] == [2, 4]
    charged = sum(row["gpu_seconds"] for row in rows_of(paths).values())
    assert charged == pytest.approx(bill.songs_s, rel=0.01)
