# foldlog: everything from a bare checkout, with Python 3.11 or newer and make.
#
# The tests run on the WHEEL, installed into .venv, never on the source folders. Each step leaves a
# stamp in .venv/.stamps and is skipped while what it depends on has not changed. pip takes its
# settings (mirrors, certificates, proxies) from the environment as usual.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?= -n auto
BENCH_ARGS ?=
SOAK_ARGS ?=
SEEDS ?= 500
FIRST ?= 0
JOBS ?= 2
KILLS ?= 200
BROKERS ?= 1

BIN := $(abspath $(VENV))/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check
ROOTS := engine/foldlog projector/foldlog_projector schemas/foldlog_schemas
FIND_SOURCES := find $(ROOTS) -type f -not -path '*/__pycache__/*'
SOURCES := $(shell $(FIND_SOURCES))
WHEELS := dist/wheel

# A PYTHONPATH of the caller would put sources before the installed wheel.
unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv wheel lint lint-format lint-code lint-types lint-imports format test kills kills-every fork-kills soak snapshot-bytes coverage sim demo bench clean FORCE
.PHONY: kafka kafka-stop kafka-long upload-kills up down

help:  ## list the targets
	@echo "foldlog: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

venv: $(STAMPS)/dev $(STAMPS)/installed  ## .venv with the tools and the installed wheel

wheel: $(STAMPS)/wheel  ## build the wheel into dist/wheel
	@ls $(WHEELS)/*.whl

lint: lint-format lint-code lint-types lint-imports  ## all four checks of the code (-k: go on)

lint-format: $(STAMPS)/dev  ## is the code laid out as `make format` does it
	$(BIN)/ruff format --check .

lint-code: $(STAMPS)/dev  ## ruff's rules
	$(BIN)/ruff check --output-format concise .

lint-types: $(STAMPS)/dev $(STAMPS)/installed  ## mypy, strict
	$(BIN)/mypy

lint-imports: $(STAMPS)/dev $(STAMPS)/installed  ## the import contracts: who may import whom
	PYTHONPATH=engine:projector:schemas $(BIN)/lint-imports

format: $(STAMPS)/dev  ## lay out the code and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: $(STAMPS)/dev $(STAMPS)/installed  ## the tests, on the installed wheel (PYTEST_ARGS="-n auto")
	FOLDLOG_TEST_VENV=$(abspath $(VENV)) FOLDLOG_TEST_WHEELS=$(abspath $(WHEELS)) \
	    $(BIN)/pytest $(PYTEST_ARGS)

kills: $(STAMPS)/dev $(STAMPS)/installed  ## 200 real kills, and some at calls of snapshots (KILLS=200)
	FOLDLOG_TEST_VENV=$(abspath $(VENV)) FOLDLOG_TEST_WHEELS=$(abspath $(WHEELS)) FOLDLOG_KILLS=$(KILLS) \
	    $(BIN)/pytest -n 2 --durations=0 tests/test_kills.py tests/test_snapshot_kills.py tests/test_rebuild.py

kills-every: $(STAMPS)/dev $(STAMPS)/installed  ## a kill at every call of snapshots, rebuild, migration
	FOLDLOG_TEST_VENV=$(abspath $(VENV)) FOLDLOG_TEST_WHEELS=$(abspath $(WHEELS)) FOLDLOG_EVERY_CALL=1 \
	    $(BIN)/pytest -n 2 --durations=0 tests/test_snapshot_kills.py tests/test_rebuild.py

fork-kills: $(STAMPS)/dev $(STAMPS)/installed  ## fork, archive and reconcile killed at each call
	FOLDLOG_EVERY_KILL=1 $(BIN)/pytest -n 2 tests/test_forked_kills.py

snapshot-bytes: $(STAMPS)/dev $(STAMPS)/installed  ## every single byte of a small snapshot changed in turn
	FOLDLOG_EVERY_BYTE=1 $(BIN)/pytest tests/test_snapshot_faults.py -k every_byte

upload-kills: $(STAMPS)/dev $(STAMPS)/installed  ## an upload to a real S3 server killed at every second call
	FOLDLOG_UPLOAD_KILLS=1 $(BIN)/pytest -n 2 tests/test_remote_races.py -k kill

kafka:  ## a real Kafka from Maven jars, without Docker (BROKERS=1; Java 17 and Maven)
	$(PYTHON) -m tests.kafka --brokers $(BROKERS) start

kafka-stop:  ## end it; its data stay in .kafka/cluster
	$(PYTHON) -m tests.kafka stop

soak: $(STAMPS)/dev $(STAMPS)/installed  ## 50 workers, 500 runs, 10 minutes of kills and stops (SOAK_ARGS=)
	$(BIN)/python -m tests.soak $(SOAK_ARGS)

kafka-long: $(STAMPS)/dev $(STAMPS)/installed  ## 200 ends of a broker, three brokers that lose their leader
	FOLDLOG_TEST_VENV=$(abspath $(VENV)) FOLDLOG_TEST_WHEELS=$(abspath $(WHEELS)) \
	    FOLDLOG_KAFKA_KILLS=$(KILLS) FOLDLOG_KAFKA_LONG=1 \
	    $(BIN)/pytest --durations=0 tests/kafka/test_faults.py

up:  ## Kafka, a projector and Prometheus in containers (Docker)
	docker compose -f compose/docker-compose.yml up -d --wait --build

down:  ## end them; the data stay in volumes
	docker compose -f compose/docker-compose.yml down

coverage: $(STAMPS)/dev $(STAMPS)/installed  ## the tests with a report of the lines they miss
	rm -f .coverage .coverage.*
	FOLDLOG_TEST_VENV=$(abspath $(VENV)) FOLDLOG_TEST_WHEELS=$(abspath $(WHEELS)) \
	    $(BIN)/coverage run -m pytest; status=$$?; \
	    $(BIN)/coverage combine --quiet && $(BIN)/coverage report; exit $$status

sim: $(STAMPS)/dev $(STAMPS)/installed  ## the simulator (SEEDS=500 FIRST=0 JOBS=2; tests/sim/README.md)
	$(BIN)/python -m tests.sim --seeds $(SEEDS) --first $(FIRST) --jobs $(JOBS)

demo: $(STAMPS)/installed  ## an agent, killed and resumed, and an auditor who looks
	PATH="$(BIN):$$PATH" sh -c 'exec examples/demo.sh'

bench: $(STAMPS)/dev $(STAMPS)/installed  ## measure (BENCH_ARGS="...")
	$(BIN)/python bench/run.py $(BENCH_ARGS)

clean:  ## remove .venv, dist and every cache
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache .coverage .coverage.*
	find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# --- how .venv comes to be -------------------------------------------------------------------

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "foldlog needs Python 3.11 or newer; '$(PYTHON)' is:" >&2; \
	    $(PYTHON) --version >&2; \
	    echo "Name another one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "'$(PYTHON)' cannot make a virtual environment: its venv or ensurepip module is missing." >&2; \
	    echo "On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet --upgrade 'pip>=25.1'
	@mkdir -p $(STAMPS) && touch $@

# pip 25.1 is the first to read [dependency-groups].
$(STAMPS)/build: pyproject.toml $(STAMPS)/venv
	$(PIP) install --quiet --group build
	@touch $@

$(STAMPS)/dev: pyproject.toml $(STAMPS)/venv
	$(PIP) install --quiet --group dev
	@touch $@

# The list of files is rewritten only when it differs: a removed file makes the wheel stale too.
$(STAMPS)/files: FORCE $(STAMPS)/venv
	@$(FIND_SOURCES) | LC_ALL=C sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(STAMPS)/wheel: $(SOURCES) $(STAMPS)/files $(STAMPS)/build pyproject.toml $(wildcard README.md) LICENSE
	rm -rf $(WHEELS)
	$(BIN)/python -m build --wheel --no-isolation --outdir $(WHEELS) . > $(STAMPS)/wheel.log 2>&1 \
	    || { cat $(STAMPS)/wheel.log >&2; exit 1; }
	@touch $@

# Two steps: the code always, what it depends on only where something is missing.
$(STAMPS)/installed: $(STAMPS)/wheel
	$(PIP) install --quiet --force-reinstall --no-deps $(WHEELS)/foldlog-*.whl
	$(PIP) install --quiet $(WHEELS)/foldlog-*.whl
	@touch $@

FORCE:
