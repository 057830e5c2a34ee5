# The developer's verbs. The user's are snakemake and levo.
#   make setup   a virtual environment in .venv (again only when pyproject.toml changes)
#   make demo    the example songs with a tiny random model, on this machine, to one page
#   make test    every test that needs no cluster
#   make cluster        a real Slurm cluster on this machine (root, Debian's Slurm); make cluster-down ends it
#   make test-cluster   the tests on such a cluster, which they start and end themselves
#   make check   style, types, workflow lint and house rules, in under a minute
#   make fix     formats, and writes the generated files
#
# TORCH is what pip gets for torch. PyPI's wheel is the CUDA build on Linux; for a machine without a GPU:
#   make setup TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
# On GH200 (aarch64) the default does: PyPI's aarch64 wheel of 2.13.0 is built for CUDA 13 (driver 580 or newer). For an
# older driver, or another CUDA version (see https://pytorch.org/get-started/locally):
#   make setup TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cu126"
TORCH ?= torch==2.13.0
PYTHON ?= python3

BIN := .venv/bin
STAMP := .venv/.complete
RUN := results/demo

.PHONY: setup demo test cluster cluster-down test-cluster check fix

setup: $(STAMP)

# torch first, so that the second line finds it and does not fetch another build.
$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "levo needs Python 3.11 or newer: make setup PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet -e ".[dev]"
	touch $(STAMP)

demo: setup
	$(BIN)/snakemake --profile profiles/local
	@echo "page: $(CURDIR)/$(RUN)/reports/report.html"

# The tests of a GPU have it to themselves, one after the other: the others see none. pytest says 5 where there is none.
test: setup
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest --ignore=tests/cluster --ignore=tests/gpu -n auto --maxprocesses 4 --dist loadfile
	$(BIN)/python -m pytest tests/gpu || [ $$? -eq 5 ]

cluster cluster-down: setup
	cd tests && ../$(BIN)/python -m cluster.lab $(if $(findstring down,$@),down,up)

test-cluster: setup
	$(BIN)/python -m pytest tests/cluster

check: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint
	$(BIN)/python -m pytest tests/unit/test_house.py

fix: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/snakefmt Snakefile workflow
	$(BIN)/python tools/generate.py
