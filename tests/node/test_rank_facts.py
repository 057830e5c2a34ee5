"""What a rank knows of its machine and of its errors."""

import dataclasses
import subprocess

import torch

from levo.node import machine
from levo.node.provenance import PROVENANCE_SCHEMA
from levo.node.rank import is_out_of_memory


def test_every_fact_of_the_machine_is_a_column():
    facts = machine.machine("cpu")
    assert {field.name for field in dataclasses.fields(facts)} <= set(PROVENANCE_SCHEMA.names)
    assert facts.torch_version == torch.__version__
    assert facts.gpu_name is None and facts.device == "cpu"


def test_the_commit_is_that_of_the_source_tree_and_says_if_it_was_changed(tmp_path, monkeypatch):
    def git(*arguments):
        settings = ("-c", "user.name=t", "-c", "user.email=t@t")
        subprocess.run(["git", "-C", str(tmp_path), *settings, *arguments], check=True, capture_output=True)

    package = tmp_path / "levo" / "__init__.py"
    package.parent.mkdir()
    package.write_text("")
    monkeypatch.setattr(machine.levo, "__file__", str(package))
    commit = machine.git_commit.__wrapped__
    assert commit() == "unknown"
    git("init")
    assert commit() == "unknown", "installed below a repository that does not hold it"
    git("add", ".")
    git("commit", "-m", "first")
    assert len(commit()) == 40
    package.write_text("x = 1")
    assert commit().endswith("+changes")


def test_only_lack_of_memory_is_taken_for_it():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
