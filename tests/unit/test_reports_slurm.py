"""Slurm's second opinion: every try is found and told apart, odd answers cost nothing, and the numbers are right."""

import json
import os
import shutil
import textwrap
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fakes.run import IDLE_S, LOAD_S, STAGE_S, make_run
from fakes.sacct import BEGAN_S, UUID, FakeSacct, clock, line, ran_in

from levo.node.paths import RunPaths
from levo.reports import sacct as sacct_room
from levo.reports.accounting_text import text_of
from levo.reports.report import account_slurm, report_run
from levo.reports.sacct import FIELDS, gpus_of, parse
from levo.reports.slurm import SLURM_SCHEMA, gather, slurm_table

WALL_S = 4 * sum(STAGE_S.values()) + LOAD_S + IDLE_S
"""Of a shard of make_run: one rank, four songs."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("slurm") / "t")


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    """Two sealed shards that ran in jobs 100 and 102."""
    copy = Path(shutil.copytree(finished, tmp_path / "t"))
    ran_in(copy, 0, 100, after_s=112)
    ran_in(copy, 1, 102)
    return copy


@pytest.fixture
def sacct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSacct:
    folder = tmp_path / "bin"
    folder.mkdir()
    return FakeSacct(folder, monkeypatch)


TWO = [
    line(100, "NODE_FAIL", 10, 20, ExitCode="1:0", Comment="rule_generate_wildcards_00000"),
    line(100, "COMPLETED", 100, 40, Submit=clock(30), Eligible=clock(40), Comment="rule_generate_wildcards_00000"),
    line(101, "CANCELLED by 0", None, Comment="rule_generate_wildcards_00001", Start=clock(900), End=clock(900)),
    line(102, "COMPLETED", 10, 50, Comment="rule_generate_wildcards_00001"),
    line(
        103, "COMPLETED", 60, 10, AllocTRES="cpu=2,mem=4000M,node=1", AllocCPUS="2", Comment="rule_qa_wildcards_00000"
    ),
    line(900, "COMPLETED", 10, 3600, JobName="somebody else's", Comment="rule_generate_wildcards_00001"),
]


def account(run_dir: Path) -> dict:
    found = account_slurm(run_dir)
    assert found is not None
    json.dumps(found, allow_nan=False)
    return found


def test_allocated_stands_beside_attributed(run_dir: Path, sacct: FakeSacct) -> None:
    sacct.say(*TWO)
    found = account(run_dir)
    allocated_s = 4 * (20 + 40 + 50)
    assert found["allocated_gpu_hours"] == pytest.approx(allocated_s / 3600)
    assert found["attributed_gpu_hours"] == pytest.approx(2 * WALL_S / 3600)
    assert found["difference_share"] == pytest.approx((allocated_s - 2 * WALL_S) / allocated_s)
    useful_s = 8 * sum(STAGE_S.values())
    assert found["efficiency"] == pytest.approx(useful_s / allocated_s)
    assert found["lost_gpu_hours"] == pytest.approx({"in_levo": 0, "before_levo": 4 * 20 / 3600})
    assert found["n_tries_before_levo"] == 1
    assert found["queue_s"] == pytest.approx({"median": 10, "p90": 50, "max": 60, "total": 80})
    assert found["states"] == {"COMPLETED": 2, "NODE_FAIL": 1, "CANCELLED": 1}
    assert found["other_jobs"] == {"n_tries": 1, "core_hours": pytest.approx(2 * 10 / 3600)}
    assert found["problems"] == []


def test_every_try_stands_with_its_shard(run_dir: Path, sacct: FakeSacct) -> None:
    sacct.say(*TWO)
    first, second = account(run_dir)["shards"]
    assert [(t["job_id"], t["state"], t["levo_started"]) for t in first["tries"]] == [
        ("100", "NODE_FAIL", False),
        ("100", "COMPLETED", True),
    ]
    assert [(t["job_id"], t["state"]) for t in second["tries"]] == [("101", "CANCELLED"), ("102", "COMPLETED")]
    assert (first["allocated_gpu_s"], second["allocated_gpu_s"]) == (240, 200)
    assert first["lost_gpu_s"] == pytest.approx(80) and first["tries"][0]["exit_code"] == 1
    assert second["efficiency"] == pytest.approx(4 * sum(STAGE_S.values()) / 200)


def test_the_question_is_bounded_and_says_what_it_wants(run_dir: Path, sacct: FakeSacct) -> None:
    sacct.say(*TWO)
    account(run_dir)
    by_id, by_name = sacct.calls
    assert by_id[-1] == "--jobs=100,102" and by_name[-1] == f"--name={UUID}"
    assert by_id[:-1] == [
        "--duplicates", "--allocations", "--allusers", "--parsable2", "--noheader",
        f"--starttime={clock(-30 * 86400)}", f"--format={','.join(FIELDS)}",
    ]  # fmt: skip
    assert json.loads(sacct.calls_file.read_text().splitlines()[0])[1:] == ["UTC", "standard"]


def test_many_jobs_are_asked_in_batches(run_dir: Path, sacct: FakeSacct, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sacct_room, "IDS_A_CALL", 1)
    sacct.say(*TWO)
    account(run_dir)
    assert [call[-1] for call in sacct.calls] == ["--jobs=100", "--jobs=102", f"--name={UUID}"]


def test_rows_are_kept_and_the_page_is_made_again_without_slurm(
    run_dir: Path, sacct: FakeSacct, monkeypatch: pytest.MonkeyPatch
) -> None:
    sacct.say(*TWO)
    with_slurm = account(run_dir)
    table = pq.read_table(slurm_table(run_dir))
    assert table.schema.equals(SLURM_SCHEMA) and table.num_rows == 5
    monkeypatch.setenv("PATH", "/nowhere")
    again = account(run_dir)
    assert again["problems"] == ["sacct is not on PATH"]
    assert {**again, "problems": []} == with_slurm
    shutil.rmtree(run_dir / "work")
    assert account(run_dir)["shards"] == with_slurm["shards"]


def test_what_slurm_has_forgotten_stays_and_what_it_knows_better_is_renewed(run_dir: Path, sacct: FakeSacct) -> None:
    running = line(102, "RUNNING", 10, 30, End="Unknown", Comment="rule_generate_wildcards_00001")
    sacct.say(*TWO[:3], running)
    assert account(run_dir)["states"]["RUNNING"] == 1
    sacct.say(TWO[3])
    found = account(run_dir)
    assert found["states"] == {"COMPLETED": 2, "NODE_FAIL": 1, "CANCELLED": 1}


def test_the_sample_in_the_docs_is_what_it_prints(run_dir: Path, sacct: FakeSacct, root: Path) -> None:
    sacct.say(*TWO)
    page = (root / "docs/status.md").read_text()
    sample = textwrap.dedent(page[page.index("    Slurm, asked") : page.index("* **allocated**")]).strip().splitlines()
    assert sample[1:] == text_of(account(run_dir)).splitlines()[1:], "the first line has the time"


def test_the_page_and_the_bill_show_it(run_dir: Path, sacct: FakeSacct) -> None:
    shard = {"Comment": "rule_generate_wildcards_00000"}
    odd = [line(104, "TIMEOUT", 5, 10, ExitCode="0:15", **shard), line(105, "<b>ODD</b>", 5, 10, **shard)]
    sacct.say(*TWO[:4], *odd)
    html = report_run(run_dir).read_text()
    for tag in ("section", "div", "table", "figure", "tbody"):
        assert html.count(f"<{tag}") == html.count(f"</{tag}>"), tag
    section = html[html.index('id="slurm"') : html.index('id="audio"')]
    assert "What Slurm says" in section and "100 NODE_FAIL 1" in section and "104 TIMEOUT signal 15" in section
    assert (
        section.count("<svg ") == 1
        and '<a href="#slurm">' in html
        and "<b>ODD" not in html
        and "&lt;b&gt;ODD" in section
    )
    assert json.loads((run_dir / "reports/cost.json").read_text())["slurm"]["n_jobs"] == 5


def test_a_run_without_slurm_asks_nothing_and_shows_nothing(finished: Path, tmp_path: Path, sacct: FakeSacct) -> None:
    run_dir = Path(shutil.copytree(finished, tmp_path / "u"))
    assert account_slurm(run_dir) is None
    html = report_run(run_dir).read_text()
    assert not sacct.calls_file.exists() and "slurm" not in html and not slurm_table(run_dir).exists()


BROKEN = {
    "slurmdbd is down": (
        "sys.exit('sacct: error: Sending PersistInit msg: Connection refused\\n"
        "sacct: error: Problem talking to the database: Connection refused')",
        "sacct ended with 1: sacct: error: Problem talking to the database: Connection refused",
    ),
    "accounting is off": ("print('Slurm accounting storage is disabled', file=sys.stderr); sys.exit(1)", "is disabled"),
    "it dies without a word": ("os.kill(os.getpid(), 9)", "sacct ended with -9: it said nothing"),
    "it hangs": ("import time; time.sleep(60)", "sacct did not answer within"),
    "it knows nothing": ("sys.exit(0)", "sacct knows 0 of 2 jobs; the first other is 100"),
    "it talks rubbish": ("print('100|'); sys.exit(0)", "lines of sacct that have another shape: 1"),
}  # fmt: skip


@pytest.mark.parametrize("how", BROKEN)
def test_an_odd_slurm_costs_its_lines_and_nothing_else(
    run_dir: Path, sacct: FakeSacct, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = BROKEN[how]
    monkeypatch.setattr(sacct_room, "CALL_S", 5.0 if how != "it hangs" else 1.0)
    sacct.breaks(code)
    began = time.monotonic()
    html = report_run(run_dir).read_text()
    assert time.monotonic() - began < 30
    found = account(run_dir)
    assert any(said in problem for problem in found["problems"]), found["problems"]
    assert len(sacct.calls) == 2, "after a call that failed no further one is made"
    assert found["n_tries"] == 0 and found["efficiency"] is None
    assert "What Slurm says" in html and "not heard yet" in text_of(found)
    assert not slurm_table(run_dir).exists()


def test_a_sacct_that_may_not_be_run(run_dir: Path, sacct: FakeSacct) -> None:
    (sacct.folder / "sacct").write_text("#!/nowhere/python\n")
    assert "could not be started" in account(run_dir)["problems"][0]


def test_damaged_rows_are_gathered_anew(run_dir: Path, sacct: FakeSacct) -> None:
    sacct.say(*TWO)
    account(run_dir)
    slurm_table(run_dir).write_bytes(b"PAR1 half")
    found = account(run_dir)
    assert "made anew" in found["problems"][0] and found["n_tries"] == 4
    assert account(run_dir)["problems"] == []


@pytest.mark.parametrize(
    "state", ["NODE_FAIL", "REQUEUED", "PREEMPTED", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "NEW_ONE"]
)
def test_every_state_is_taken_as_it_is(run_dir: Path, sacct: FakeSacct, state: str) -> None:
    sacct.say(*TWO[1:4], line(105, state, 1, 2, Comment="rule_generate_wildcards_00000"))
    assert account(run_dir)["states"][state] == 1


def test_missing_times_and_free_text_are_no_problem(run_dir: Path, sacct: FakeSacct) -> None:
    sacct.say(
        line(100, "RUNNING", 100, 40, End="Unknown", Eligible="Unknown", Comment="rule_generate_wildcards_00000"),
        line(102, "COMPLETED", 10, 50, Comment="rule_generate_wildcards_00001", NodeList="nid[001-002,4]"),
        line(106, "PENDING", None, Eligible="Unknown", SubmitLine="sbatch --comment rule_generate_wildcards_00001 -n1"),
        "",
    )
    found = account(run_dir)
    assert found["problems"] == [] and found["n_tries"] == 3
    first, second = found["shards"]
    assert first["queue_s"] == 100, "without an eligible time the submit time counts"
    assert [t["state"] for t in second["tries"]] == ["COMPLETED", "PENDING"] and second["queue_s"] == 10


def test_lines_of_another_shape_are_counted_and_the_others_stand(run_dir: Path, sacct: FakeSacct) -> None:
    step = line(102).replace("102|", "102.batch|")
    sacct.say(*TWO[:4], "garbage", line(102, Elapsed="soon"), step, line(102, AllocCPUS="many"))
    found = account(run_dir)
    assert found["n_tries"] == 4
    assert found["problems"] == ["lines of sacct that have another shape: 4, the first: 'garbage'"]


def test_gpus_that_slurm_does_not_list_are_reckoned_and_said(run_dir: Path, sacct: FakeSacct) -> None:
    sacct.say(TWO[1], line(102, "COMPLETED", 10, 50, AllocTRES="cpu=288,mem=800000M,node=1"))
    found = account(run_dir)
    assert found["allocated_gpu_hours"] == pytest.approx(4 * (40 + 50) / 3600)
    assert found["problems"] == ["Slurm lists no GPUs for 1 tries: 4 a node are reckoned (setting cost.gpus_per_node)"]


def test_shards_that_shared_a_job_are_counted_once_and_not_split(
    finished: Path, tmp_path: Path, sacct: FakeSacct
) -> None:
    run_dir = Path(shutil.copytree(finished, tmp_path / "u"))
    for shard in (0, 1):
        ran_in(run_dir, shard, 200)
    sacct.say(line(200, "COMPLETED", 10, 100, JobName="interactive"))
    found = account(run_dir)
    assert found["allocated_gpu_hours"] == pytest.approx(400 / 3600)
    assert found["attributed_gpu_hours"] == pytest.approx(2 * WALL_S / 3600)
    assert found["shards"] == []
    assert "What Slurm says" in report_run(run_dir).read_text()
    assert len(sacct.calls) == 2, "its name leads nowhere: only Snakemake's names are asked for"


def test_the_report_as_a_job_leads_to_its_own_start_of_snakemake(
    run_dir: Path, sacct: FakeSacct, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All jobs of the newest start died before levo began: only the report's own job knows their name."""
    other = UUID.replace("0d87", "ffff")
    monkeypatch.setenv("SLURM_JOB_ID", "301")
    died = line(300, "FAILED", 200, 5, JobName=other, ExitCode="127:0", Comment="rule_generate_wildcards_00001")
    sacct.say(*TWO[:4], died, line(301, "RUNNING", 300, 5, JobName=other, End="Unknown", Comment="rule_report"))
    found = account(run_dir)
    assert [t["job_id"] for t in found["shards"][1]["tries"]] == ["101", "102", "300"]
    assert found["n_tries_before_levo"] == 2 and found["other_jobs"]["n_tries"] == 1


def test_a_shell_that_is_a_job_is_not_counted(run_dir: Path, sacct: FakeSacct, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "400")
    sacct.say(*TWO[:4], line(400, "RUNNING", 0, 9999, JobName="bash"))
    gathered = gather(run_dir, 2)
    assert gathered is not None and "400" not in {row["job_id"] for row in gathered.rows}


def test_the_text_is_a_table_for_a_terminal(run_dir: Path, sacct: FakeSacct) -> None:
    sacct.say(*TWO)
    lines = text_of(account(run_dir)).splitlines()
    assert lines[0].endswith(": 3 jobs, 4 tries: 2 COMPLETED, 1 NODE_FAIL, 1 CANCELLED")
    named = ["allocated", "attributed", "difference", "useful", "lost in levo", "lost before levo", "queue time"]
    assert [row[:18].strip() for row in lines[1:8]] == named
    shards = [row for row in lines if row.startswith("  0000")]
    assert "100 NODE_FAIL 1, 100 COMPLETED" in shards[0] and "101 CANCELLED, 102 COMPLETED" in shards[1]
    assert max(map(len, lines)) <= 120


def test_a_day_long_job_is_counted_whole() -> None:
    tries, odd = parse(line(1, "COMPLETED", 10, 93784))
    assert not odd and "1-02:03:04" in line(1, "COMPLETED", 10, 93784) and tries[0].elapsed_s == 93784
    assert tries[0].start_s == BEGAN_S + 10


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("billing=288,cpu=288,gres/gpu=4,mem=800000M,node=1", 4),
        ("cpu=1,gres/gpu:gh200=4,gres/gpu=4,node=1", 4),
        ("cpu=1,gres/gpu:a100=2,gres/gpu:h200=3", 5),
        ("gres/gpumem=80G,cpu=4", None),
        ("", None),
    ],
)
def test_gpus_in_a_list_of_resources(tres: str, gpus: int | None) -> None:
    assert gpus_of(tres) == gpus


def test_slurm_2205_as_it_answers(root: Path) -> None:
    """Lines of a real cluster: a preempted job comes twice with one id; a running job has no comment yet."""
    tries, odd = parse((root / "tests/data/sacct_22.05.txt").read_text())
    assert not odd
    first, second = (t for t in tries if t.job_id == "19")
    assert (first.state, second.state, second.state_text) == ("PREEMPTED", "CANCELLED", "CANCELLED by 0")
    assert first.submit_s != second.submit_s
    by_id = {t.job_id: t for t in tries}
    assert by_id["37"].state == "RUNNING" and by_id["37"].end_s is None and by_id["37"].elapsed_s > 0
    assert by_id["37"].comment == "rule_generate_wildcards_00005"
    assert {t.gpus for t in tries if t.comment.startswith("rule_generate")} == {4}
    assert {t.gpus for t in tries if t.comment.startswith("rule_qa")} == {None}


def test_jobs_of_a_run_are_looked_for_from_its_own_days_on(run_dir: Path, sacct: FakeSacct) -> None:
    """The config may be younger than the first attempt: a setting was changed."""
    os.utime(RunPaths(run_dir).config, (BEGAN_S + 86400,) * 2)
    sacct.say(*TWO)
    account(run_dir)
    assert f"--starttime={clock(12 - 30 * 86400)}" in sacct.calls[0]
