# make demo    set up, then optimise a shipped kernel (no GPU, no CUDA installation needed)
# make test    set up, then run the tests
# make test-slow  the tests that take minutes: every attack of the self-test, kills, real interrupts, clusters, a whole pull request, the guides
# make lint    set up, then ruff, mypy --strict, the contracts of imports and the checks of the Action and its workflows
# make metrics sizes and couplings of the engine; ARGS=--list shows what stands behind each number
# make schema  write docs/optiml.schema.json
# make lock   resolve and hash again what the Action's gate and posting jobs install (action/requirements.txt)
# make release-check  build sdist and wheel and use the wheel under each Python that is there: all of a release but the upload
# make measure measure the tables of docs/results.md on this GPU, for at most LIMIT; run it again until no row is missing
# make golden  write what rules propose and drafts say into tests/golden
# make docs    write the documentation as a site into site/, with every link checked
# make screenshot  draw docs/review.png from the recorded reviews (needs Chromium and npm)
# PYTHON=python3.12 make demo    with another interpreter (3.11 or newer)

PYTHON ?= python3
VENV ?= .venv
BUDGET ?= 40s
LIMIT ?= 25m
MEASURED := examples suite controls rate peers-pytorch peers-cublas-cub peers-kernel-tuner
DEMO_OUT := .optiml/softmax-softmax_kernel
BIN := $(VENV)/bin
# One more than there are cores: many tests wait for a process for half their time.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)) + 1)')

.PHONY: demo test test-slow lint format measure metrics schema lock golden docs screenshot release-check clean

demo: $(VENV)/.ready
	$(BIN)/optiml optimize examples/softmax.cu --budget $(BUDGET) --out $(DEMO_OUT)
	@test -s $(DEMO_OUT)/best.patch && cat $(DEMO_OUT)/best.patch

test: $(VENV)/.ready-dev
# Hundreds of processes start: each would compile the engine anew.
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-slow: $(VENV)/.ready-dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal -m 'slow and not gpu and not model'

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions action.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml docs/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	@if command -v actionlint >/dev/null; then actionlint; else echo 'actionlint is not installed; CI runs it'; fi
	$(BIN)/zizmor --offline --persona auditor --no-progress --quiet action.yml .github/dependabot.yml .github/workflows/*.yml docs/workflows/*.yml

metrics: $(VENV)/.ready-dev
	$(BIN)/python -m benchmarks.metrics $(ARGS)

measure: $(VENV)/.ready-dev
	$(BIN)/optiml bench $(MEASURED) --device gpu --resume --limit $(LIMIT)
	$(BIN)/python benchmarks/results_page.py
	$(BIN)/python benchmarks/readme_example.py

schema: $(VENV)/.ready-dev
	$(BIN)/python -m engine.settings.config > docs/optiml.schema.json

lock: $(VENV)/.ready-dev
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command 'make lock' --output-file action/requirements.txt action/requirements.in

release-check: $(VENV)/.ready-dev
	$(BIN)/python .ci/release_check.py $(if $(TAG),--tag "$(TAG)")

golden: $(VENV)/.ready-dev
	$(BIN)/python -m tests.golden.behaviour

docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

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

$(VENV)/.ready-docs: pyproject.toml | $(BIN)/python
	@echo 'Installing into $(VENV) with what the site needs (once)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@ $(VENV)/.ready

clean:
	rm -rf $(VENV) site build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
