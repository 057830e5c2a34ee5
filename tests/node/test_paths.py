"""Names of a RUN's files."""

from pathlib import Path

from levo.node.paths import PartName, RunPaths, part_name


def test_files_lie_where_the_design_says() -> None:
    run = RunPaths(Path("results/demo"))
    shard = run.shard(42)
    assert run.plan == Path("results/demo/plan/shards.parquet")
    assert shard.provenance == Path("results/demo/shards/00042/provenance.parquet")
    assert shard.tar(1, 2, 3) == Path("results/demo/shards/00042/audio-a001-r2-00003.tar")
    assert shard.part(1, 2, 3) == Path("results/demo/work/00042/part-a001-r2-00003.parquet")
    assert shard.qa == Path("results/demo/qa/00042.parquet")


def test_no_two_attempts_ranks_or_numbers_share_a_file() -> None:
    shard = RunPaths(Path("r")).shard(0)
    keys = [(a, r, n) for a in (1, 1000) for r in (0, 1, 11) for n in (0, 7)]
    assert len({path for key in keys for path in (shard.tar(*key), shard.part(*key))}) == 2 * len(keys)
    assert len({shard.log(a, r) for a in (1, 2) for r in (None, 0, 1)}) == 6


def test_a_name_says_which_part_it_is() -> None:
    shard = RunPaths(Path("r")).shard(0)
    for path in (shard.tar(1000, 11, 7), shard.part(1000, 11, 7)):
        assert part_name(path) == PartName(1000, 11, 7)
    assert part_name(shard.provenance) is None
    assert part_name(Path(".part-a001-r0-00000.parquet.77.tmp")) is None


def test_parts_sort_by_attempt_then_rank_then_number() -> None:
    names = [PartName(1, 0, 1), PartName(1, 1, 0), PartName(2, 0, 0), PartName(10, 0, 0)]
    assert sorted(names[::-1]) == names


def test_shards_are_found_by_number(tmp_path: Path) -> None:
    for name in ("00010", "00002", "notes"):
        (tmp_path / "shards" / name).mkdir(parents=True)
    assert [shard.number for shard in RunPaths(tmp_path).shards()] == [2, 10]
