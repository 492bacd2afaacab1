# Every target that runs something makes its environment first, in .venv (test-lowest in one of its own). Settings, given as NAME=value after the target:
#   PYTHON       the interpreter .venv is made with (3.11 or newer); by default python3.11, else python3
#   TORCH_INDEX  a package index to take torch from, such as https://download.pytorch.org/whl/cpu
#   SERVED       the model that prove-serve, soak and browser serve; SERVED_DATA the texts they send

PYTHON ?= $(shell for p in python3.11 python3; do $$p -c '' 2>/dev/null && echo $$p && break; done)
TORCH_INDEX ?=

VENV := .venv
LOWEST := .venv-lowest
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet
TORCH := $(shell grep '^torch==' constraints.txt)
CODE := src tests benchmarks
LONG := 300
# One process a core, each file's tests in one of them; each computes on one thread, since threads that wait are ruinous.
ABREAST := -n auto --dist loadfile
# Playwright is large, and of use only where it has a browser to drive.
COMMA := ,
EXTRAS := dev,hub,ray$(if $(ADAPLER_CHROMIUM)$(shell command -v chromium || command -v chromium-browser || command -v google-chrome),$(COMMA)browser)
FOUND = $(PY) -c 'import sys; from benchmarks.browser import chromium; sys.exit(chromium() is None)'
APT_GET := $(if $(filter 0,$(shell id -u)),,sudo )apt-get
DEMO := runs/demo
SERVED ?= $(DEMO)
SERVED_DATA ?=

.DEFAULT_GOAL := help
.PHONY: demo test test-lowest check bench prove prove-serve soak browser tables clean help

demo: $(VENV)/.demo  ## train a small reduced classifier and show what it keeps
	$(PY) -m adapler.demo

test: check  ## check, then every test
	OMP_NUM_THREADS=1 $(PY) -m pytest $(ABREAST)

test-lowest: $(LOWEST)/.installed  ## every test with the oldest versions that pyproject.toml admits
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest $(ABREAST)

check: $(VENV)/.installed  ## lint, format, types, tables; lists long files
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m mypy $(CODE)
	$(PY) -m benchmarks.tables --check
	@find src -name '*.py' -exec wc -l {} + | awk '$$2 != "total" && $$1 > $(LONG) {print "over $(LONG) lines: " $$2 " (" $$1 ")"}'

bench: $(DEMO)/reduction.json  ## ten minutes: the demo's model beside transformers and ONNX Runtime; writes benchmarks/results
	$(PY) -m adapler bench $(DEMO) --data $(DEMO)-data --count 256 --seconds 300 \
	  --out benchmarks/results/bench-demo-data.json --chart $(DEMO)-bench.html
	$(PY) -m benchmarks.tables

prove: $(VENV)/.installed  ## every test at its stated count; writes benchmarks/results/prove-*.json
	env -u OMP_NUM_THREADS $(PY) -m pytest --prove
	$(PY) -m benchmarks.tables

prove-serve: $(SERVED)/reduction.json  ## half an hour: the server fuzzed, flooded, killed and compared (SERVED=folder, SERVED_DATA=texts)
	$(PY) -m benchmarks.serve_proof $(SERVED) $(if $(SERVED_DATA),--data $(SERVED_DATA))
	$(PY) -m benchmarks.tables

soak: $(SERVED)/reduction.json  ## half an hour: the server under steady load; memory and files must stay as they were
	$(PY) -m benchmarks.serve_proof $(SERVED) $(if $(SERVED_DATA),--data $(SERVED_DATA)) --only soak
	$(PY) -m benchmarks.tables

browser: $(VENV)/.installed  ## the page at /ui in a real browser, installed by apt where there is none; pictures of it where SERVED is
	$(PIP) -c constraints.txt -e '.[dev,browser]'
	@$(FOUND) || { $(APT_GET) update --quiet; $(APT_GET) install --yes chromium; } || \
	  { echo "no chromium here, and apt-get cannot install it; install one and give it: ADAPLER_CHROMIUM=/path/to/chromium make browser" >&2; exit 1; }
	$(PY) -m benchmarks.browser_proof $(wildcard $(SERVED))
	$(PY) -m benchmarks.tables

tables: $(VENV)/.installed  ## write the tables of README.md and docs again from benchmarks/results
	$(PY) -m benchmarks.tables

clean:  ## remove builds and caches (rm -r .venv for a new environment)
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# torch comes first and without dependencies, so that nothing pulls another build of it; the next line brings the rest.
$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "adapler needs Python 3.11 or newer; none found. Give one: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "adapler needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Give another: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(PIP) -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.demo: requirements-demo.txt $(VENV)/.installed
	$(PIP) --no-deps --only-binary :all: --require-hashes -r requirements-demo.txt
	@touch $@

$(DEMO)/reduction.json: | $(VENV)/.demo
	$(PY) -m adapler.demo

$(LOWEST)/.installed: pyproject.toml tests/lowest.py
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps \
	  $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(PYTHON) tests/lowest.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip --disable-pip-version-check install --quiet -r $(LOWEST)/lowest.txt $(TORCH)
	$(LOWEST)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -e .
	@touch $@
