# Every command of the project; `make help` lists them. Works with GNU make 3.81 (macOS) and later.

VENV   ?= .venv
PARITY ?= .venv-parity
BIN    := $(VENV)/bin

# MLX's back-end: part of the package on macOS; on Linux one of cpu, cuda12, cuda13.
ifeq ($(shell uname -s),Darwin)
EXTRAS := dev
else
BACKEND ?= cpu
EXTRAS := $(BACKEND),dev
endif

DEMO_PROMPT ?= Tell me a story about a frog.

export PYTHON
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow test-cuda parity lint format typecheck wheel-check fixtures bench ci clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Set-up happens once, and again when pyproject.toml changes.
install: $(VENV)/.installed  ## create .venv with the package in it (Linux with a GPU: BACKEND=cuda13)

$(VENV)/.installed: pyproject.toml
	@$(BIN)/python -c 'import pip' 2>/dev/null || { \
	  python=$$(tools/find_python.sh) && echo "creating $(VENV) with $$python" && \
	  "$$python" -m venv --clear $(VENV); }
	@echo "installing into $(VENV), once; this takes a few minutes"
	$(BIN)/python -m pip install -qq --editable '.[$(EXTRAS)]'
	@touch $@

$(PARITY)/.installed: pyproject.toml
	@$(PARITY)/bin/python -c 'import pip' 2>/dev/null || { \
	  python=$$(tools/find_python.sh) && echo "creating $(PARITY) with $$python" && \
	  "$$python" -m venv --clear $(PARITY); }
	@echo "installing into $(PARITY), once; torch is large"
	$(PARITY)/bin/python -m pip install -qq --editable '.[$(EXTRAS),parity]'
	@touch $@

demo: install  ## watch the model that ships in the package write an answer
	@watch=; if [ -t 1 ] && [ -t 2 ]; then watch=--watch; fi; \
	printf '+ %s\n' "$(BIN)/dgemma-mlx generate --model demo --seed 1 $$watch '$(DEMO_PROMPT)'"; \
	$(BIN)/dgemma-mlx generate --model demo --seed 1 $$watch "$(DEMO_PROMPT)"
	@printf '%s\n' "next: $(BIN)/dgemma-mlx chat --model demo   or: source $(BIN)/activate"

# Files are spread over two processes: most of a test is one thread of Python or of MLX's CPU back-end.
test: install  ## run the tests (seconds to minutes)
	$(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist loadfile

test-slow: install  ## run the tests that take minutes
	$(BIN)/python -m pytest -m slow

# Results go to benchmarks/results. Without a GPU that MLX can use: one line; exit code 3, which make turns into 2.
test-cuda: install  ## run what an NVIDIA GPU has to prove, in eight minutes (first: BACKEND=cuda13)
	$(BIN)/python tools/cuda_check.py

parity: $(PARITY)/.installed  ## compare live with transformers (an environment of its own, with torch)
	$(PARITY)/bin/python -m pytest -m parity tests

lint: install  ## check format and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: install  ## put files into the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# mypy cannot follow the editable install into convert/ and metal/, so it gets the tree as it installs.
typecheck: install  ## check types
	rm -rf build/types && mkdir -p build/types
	cp -R mlx_diffusiongemma build/types/
	cp -R convert metal build/types/mlx_diffusiongemma/
	MYPYPATH=build/types $(BIN)/python -m mypy --cache-dir build/mypy -p mlx_diffusiongemma

wheel-check: install  ## build the wheel, install it in a clean environment and run it there
	$(BIN)/python tools/wheel_check.py

fixtures: $(PARITY)/.installed  ## record the parity fixtures again (a commit of its own, saying why)
	$(PARITY)/bin/python tools/make_fixtures.py

bench: install  ## measure step time, prefill and memory on this machine
	$(BIN)/python benchmarks/step_time.py

ci: lint typecheck wheel-check demo parity test  ## everything above that has to pass

clean:  ## remove what the commands above made
	rm -rf $(VENV) $(PARITY) build dist *.egg-info .pytest_cache .ruff_cache
