# make demo    set up, then optimise a shipped kernel (no GPU, no CUDA installation needed)
# make test    set up, then run the whole test suite
# make lint    set up, then ruff, mypy --strict and the checks of the Action and its workflows
# make schema  write docs/optiml.schema.json
# make screenshot  draw docs/review.png from the recorded reviews (needs Chromium and npm)
# PYTHON=python3.12 make demo    with another interpreter (3.11 or newer)

PYTHON ?= python3
VENV ?= .venv
BUDGET ?= 40s
DEMO_OUT := .optiml/softmax-softmax_kernel
BIN := $(VENV)/bin

.PHONY: demo test lint format schema screenshot clean

demo: $(VENV)/.ready
	$(BIN)/optiml optimize examples/softmax.cu --budget $(BUDGET) --out $(DEMO_OUT)
	@test -s $(DEMO_OUT)/best.patch && cat $(DEMO_OUT)/best.patch

test: $(VENV)/.ready-dev
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions action.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows docs/workflows/*.yml
	$(BIN)/zizmor --offline --persona auditor --no-progress --quiet action.yml docs/workflows/*.yml

schema: $(VENV)/.ready-dev
	$(BIN)/python -m engine.config > docs/optiml.schema.json

screenshot: $(VENV)/.ready-dev
	$(BIN)/python benchmarks/review_screenshot.py --out docs/review.png

format: $(VENV)/.ready-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11; name another one: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.ready: pyproject.toml | $(BIN)/python
	@echo 'Installing into $(VENV) (once; about 140 MB to download)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml | $(BIN)/python
	@echo 'Installing into $(VENV) with what tests and lint need (once)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.ready

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
