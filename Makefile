# make install | demo | test | ci: each needs only Python 3.11 and Java 17. Completed steps are not repeated.
.DEFAULT_GOAL := help
.PHONY: help install dev java demo jars test-jars checks test faults cluster-test bench ci docs site lock jar-lock clean
MAKEFLAGS += --no-builtin-rules --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.done
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install
# Tests wait for brokers more than they compute. Without xdist's own order, files with few long tests come first, not last.
PYTEST_ARGS ?= -n 3 --dist loadfile --no-loadscope-reorder
FAULTS ?=
BENCH ?=
FAULT_REPORT ?= build/faults.json
COMPILE := $(BIN)/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	--no-header --allow-unsafe --no-strip-extras --build-deps-for=editable --build-deps-for=wheel

help:
	@echo "make install   .venv/bin/mirror"
	@echo "make demo      two embedded Kafka clusters, a mirror between them, compared record by record"
	@echo "make test      lint, types, unit and integration tests with Kafka 4.4.0, without the long ones"
	@echo "make faults    hundreds of kills, cuts, pauses and full disks: one to two hours; see docs/faults.md"
	@echo "make cluster-test  a lane on a Spark cluster of two workers, one of which is killed"
	@echo "make ci        what CI runs: all of that, three Kafka versions, all long tests, one slow test and a small part of the faults, a different one each day"
	@echo "make bench     compared with MirrorMaker 2: about 100 minutes, 55 GB of disk; BENCH=--quick under 6; see docs/benchmarks.md"
	@echo "make docs      the generated pages of docs/: commands, settings, JSON Schema"
	@echo "make site      docs/ as a site in build/site; a link or anchor that leads nowhere fails it"
	@echo "make lock      requirements*.lock from pyproject.toml;   make jar-lock   the pinned jars"
	@echo "make clean     remove .venv and build folders (fetched jars stay in the user's cache)"

install: $(BIN)/mirror

$(DONE)/venv:
	@test -x $(BIN)/python || scripts/make-venv $(VENV)
	@mkdir -p $(DONE) && touch $@

$(DONE)/runtime: requirements.lock $(DONE)/venv
	@echo "== dependencies (requirements.lock, with hashes; about 700 MB, one to three minutes the first time)"
	@$(PIP) --require-hashes -r $<
	@touch $@

$(BIN)/mirror: pyproject.toml $(DONE)/runtime
	@echo "== mirror-pipeline itself"
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

dev: $(DONE)/dev

$(DONE)/dev: requirements-dev.lock $(BIN)/mirror
	@echo "== tools for tests (requirements-dev.lock, with hashes)"
	@$(PIP) --require-hashes -r $<
	@touch $@

# Before anything is installed: a missing Java must be reported at once, not minutes later.
java: $(DONE)/venv
	@$(BIN)/python -m mirror_pipeline.execution.java

jars: java install
	@$(BIN)/python -m mirror_pipeline.execution.jars kafka-4.4.0 delta
	-@$(BIN)/python -m mirror_pipeline.execution.class_archive  # without it Spark only starts slower

test-jars: java install
	@$(BIN)/python -m mirror_pipeline.execution.jars kafka-4.4.0 kafka-4.3.0 kafka-3.9.1 delta
	-@$(BIN)/python -m mirror_pipeline.execution.class_archive  # without it Spark only starts slower

demo: java install jars
	@$(BIN)/mirror demo $(DEMO_ARGS)

checks: java dev test-jars
	@echo "== ruff"
	@$(BIN)/ruff check --quiet .
	@echo "== mypy"
	@$(BIN)/mypy
	@echo "== pytest"

test: checks
	@$(BIN)/python -m pytest $(PYTEST_ARGS) --long none --kafka 4.4.0

faults: java dev test-jars
	@mkdir -p $(dir $(FAULT_REPORT))
	@$(BIN)/python -m pytest tests/faults --faults all -s -q -n 2 --dist loadfile --fault-report $(FAULT_REPORT) $(FAULTS)

cluster-test: java dev test-jars
	@$(BIN)/python -m pytest tests/integration/copy/test_spark_cluster.py --slow all -s -q

bench: java dev test-jars
	@$(BIN)/python -m benchmarks.versus $(BENCH)

ci: checks
	@scripts/ci-tests

docs: install
	@$(BIN)/python -m scripts.generate_docs

site: dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "build/site/index.html"

lock: dev
	@echo "== requirements.lock and requirements-dev.lock (several minutes)"
	@$(COMPILE) -o requirements.lock pyproject.toml
	@$(COMPILE) --extra dev -c requirements.lock -o requirements-dev.lock pyproject.toml

jar-lock: java install
	@$(BIN)/python scripts/lock_jars.py

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
