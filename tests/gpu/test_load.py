"""On the GPU: a converted model arrives there as on a CPU, without a copy on the host; doctor and self check agree."""

from pathlib import Path

import pytest
import torch
from fakes.upstream import TINY_CODEC, Held, hold_tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
]


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Held:
    return hold_tiny(tmp_path_factory.mktemp("held"))


@pytest.fixture(scope="module")
def model(held: Held) -> Path:
    from levo.model.convert import convert

    out = held.checkpoint.parent / "model"
    convert(held.checkpoint, held.runtime, out, torch.float16, TINY_CODEC)
    return out


def test_tensors_on_the_gpu_are_those_on_the_cpu(model: Path) -> None:
    from levo.model.checkpoint import load

    there, here = load(model, "cuda", torch.float16), load(model, "cpu", torch.float16)
    assert there.lm is not None and here.lm is not None
    one, other = there.lm.state_dict(), here.lm.state_dict()
    assert not [name for name in other if not torch.equal(one[name].cpu(), other[name])]
    one, other = there.vae.state_dict(), here.vae.state_dict()
    for name in other:  # weight norm is folded on the device: the last bit of a float32 norm may differ
        torch.testing.assert_close(one[name].cpu(), other[name], rtol=1e-6, atol=1e-7)
    block = there.lm.main.layers[0]
    q, k, v = (getattr(block.self_attn, f"{part}_proj").weight for part in "qkv")
    assert k.data_ptr() == q.data_ptr() + q.nbytes and v.data_ptr() == k.data_ptr() + k.nbytes


def test_loading_needs_no_second_copy_on_the_host(tmp_path: Path) -> None:
    """400 MB onto the GPU; private host memory grows by less than a tenth of it."""
    from fakes.upstream import tiny_layout

    from levo.bench.load import bench_load
    from levo.bench.random_checkpoint import Fill
    from levo.model import tiny
    from levo.model.config import LMConfig
    from levo.model.convert import convert
    from levo.model.upstream_names import lm_shapes

    layout = tiny_layout()
    config = {**layout.config, "lm": {**layout.config["lm"], "dim": 1024, "intermediate_size": 8192, "num_layers": 6}}
    found = {name: tuple(tensor.shape) for name, tensor in tiny.contents().lm.items()}
    fill = Fill(0)
    weights = {
        name: fill.tensor(name, shape) for name, shape in lm_shapes(LMConfig.from_upstream(config), found).items()
    }
    held = hold_tiny(tmp_path, tiny_layout(config=config, lm=weights))
    convert(held.checkpoint, held.runtime, tmp_path / "model", torch.float16, TINY_CODEC)
    bench_load(tmp_path / "model", held.checkpoint, held.runtime)  # libraries and kernels are loaded once
    report = bench_load(tmp_path / "model", held.checkpoint, held.runtime)
    assert report.n_bytes > 3e8
    assert report.loadings[0].host_bytes < report.n_bytes / 10
    assert report.loadings[2].host_bytes > report.n_bytes, "the reference's copies are seen"


def test_doctor_finds_the_gpu_and_compiles_a_kernel(model: Path, tmp_path: Path) -> None:
    from levo.node.doctor import doctor
    from levo.node.doctor.finding import OK, PROBLEM

    findings = {finding.what: finding for finding in doctor(model, tmp_path).findings}
    assert [findings[what].level for what in ("torch", "Triton", "attention")] == [OK] * 3, findings
    problems = [finding.what for finding in findings.values() if finding.level == PROBLEM]
    assert "GPU 0" in findings and set(problems) <= {"Snakemake"}, "a GPU machine without Snakemake is enough here"


def test_self_check_of_a_tiny_model_is_good(model: Path) -> None:
    from levo.bench.selfcheck import selfcheck

    check = selfcheck(model, seconds=2)
    assert not check.against, str(check)
