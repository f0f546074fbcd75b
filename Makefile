# Commands of a working day. `make setup` first; the others use the virtual environment that it makes.
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: setup test test-long test-fast test-sparks pipelines lint format bench demo docs

setup:  ## a virtual environment with everything that tests and linters need
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e '.[dev]'

test:  ## the README's test command; a quarter of an hour on two cores
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-long:  ## what CI runs after it: whole applications, checkpoints that move, Kafka; ten minutes
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "long or pipelines"

test-sparks:  ## the plugin on the versions of Spark that CI does not install; hours on two cores
	.ci/other-sparks

pipelines:  ## gpuwin beside a Kafka broker, an S3 server and what else Maven Central brings; four minutes on two cores
	$(BIN)/python -m pytest -m pipelines tests/pipelines

test-fast:  ## the engine, its state and its kernels on the CPU, without Spark and its service; under two minutes on two cores
	$(BIN)/python -m pytest -n 2 -x tests/engine tests/state tests/kernels --deselect tests/engine/test_properties.py

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/packaging/scala_format.py

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench:  ## the ratio of plain Spark's time to gpuwin's on this machine
	$(BIN)/gpuwin bench

demo:
	$(BIN)/gpuwin demo

docs:  ## the pages that are written by programs
	$(BIN)/python -m gpuwin_spark.configuration_page docs/configuration.md
	$(BIN)/python benchmarks/performance_page.py
