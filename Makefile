# Needs Python 3.11 or newer with pip, make and a C compiler; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?= -n 2 --dist worksteal

# OpenBLAS threads wait by spinning: where the cores are busy, two took over ten times as long as one for a kernel fit.
export OPENBLAS_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help run test bench lint types imports clean

help:
	@echo "make run      the paper's tables beside its figures (mlrh reproduce), into reproduction/"
	@echo "make test     all tests and the examples in docstrings"
	@echo "make bench    speed beside scikit-learn and LibMultiLabel, into benchmarks/results/ (about an hour)"
	@echo "make lint     ruff: rules and formatting"
	@echo "make types    mypy"
	@echo "make imports  import order of the modules"
	@echo "make clean    remove .venv, caches and build results"
	@echo
	@echo "MLRH_DATA=FOLDER make run    with the public data sets from a folder instead of a download"
	@echo "The first call creates .venv and installs the versions of constraints.txt."
	@echo "PYTHON=python3.12 make test    another interpreter (after make clean)"
	@echo "make test PYTEST_ARGS=tests/test_solvers.py    some tests only"

run: $(VENV)/installed
	$(BIN)/mlrh reproduce

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# LibMultiLabel has an environment of its own; where it can't be made, its lines say so and the rest runs.
bench: $(VENV)/installed
	-$(BIN)/python -m benchmarks.adapters.libmultilabel
	$(BIN)/python -m benchmarks.run --output benchmarks/results/bench.json $(BENCH_ARGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy src

imports: $(VENV)/installed-dev
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) $(VENV)-libmultilabel build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The stamps: an install is repeated only after pyproject.toml or constraints.txt has changed.
$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[paper]"
	touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(VENV)/installed $@
