# Needs Python 3.11 or newer with pip, make and a C compiler; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?= $(TWO) -m "not slow"
FUZZ_SECONDS ?= 300
TWO := -n 2 --dist worksteal

# Tests whose numbers could depend on the processor: the kernels that BLAS, numba and NumPy choose for it.
NUMERICAL := $(addprefix tests/test_,$(addsuffix .py, \
	processor oracle distribution_any_scale spaces_contract space_edges \
	label_space_derivatives condition questions expected extreme_numbers rational_brute_force decisions space_kernels objective solvers proximal quasi_newton row_space products estimators \
	kernels elastic_net warm_start undetermined model_selection open_space groups hierarchy))
NUMERICAL_TORCH := tests/test_torch_loss.py tests/test_torch_distribution.py tests/test_torch_spaces_numpy.py

# OpenBLAS threads wait by spinning: where the cores are busy, two took over ten times as long as one for a kernel fit.
export OPENBLAS_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help run test test-slow test-all test-kernels test-oldest fuzz lock release bench boomer lint types imports clean

help:
	@echo "make run           the paper's tables beside its figures (mlrh reproduce), into reproduction/"
	@echo "make test          tests and the examples in docstrings, without the slow ones"
	@echo "make test-slow     long runs, and the wheel alone with its own dependencies"
	@echo "make test-all      both"
	@echo "make test-kernels  numerical tests as on other processors (x86-64)"
	@echo "make test-oldest   tests with the oldest supported versions (constraints-oldest.txt), in .venv-oldest, where"
	@echo "                   every access of compiled code beyond an array is an error"
	@echo "make fuzz          random files and requests, FUZZ_SECONDS (300) for each kind"
	@echo "make bench         speed beside scikit-learn and LibMultiLabel, into benchmarks/results/ (about an hour)"
	@echo "make boomer        BOOMER, for mlrh compare --suite public, in .venv-boomer"
	@echo "make lint          ruff: rules and formatting"
	@echo "make types         mypy"
	@echo "make imports       import order of the modules"
	@echo "make lock          requirements-*.txt: the versions of constraints.txt with hashes"
	@echo "make release       sdist, wheel, SBOM and SHA256SUMS into dist/"
	@echo "make clean         remove the environments, caches and build results"
	@echo
	@echo "MLRH_DATA=FOLDER make run    with the public data sets from a folder instead of a download"
	@echo "The first call creates .venv and installs the versions of constraints.txt."
	@echo "PYTHON=python3.12 make test    another interpreter (after make clean)"
	@echo "make test PYTEST_ARGS=tests/test_solvers.py    some tests only"

run: $(VENV)/installed
	$(BIN)/mlrh reproduce

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest $(TWO) -m slow

test-all: test test-slow

# Haswell has AVX2. The second run is as on the least processor of this kind: Nehalem has only SSE for BLAS, "generic" is the
# least that numba compiles for, kept apart from what it caches for this processor, and NumPy and torch use no vector
# instructions beyond SSE. NumPy refuses names that it doesn't know, so tests/processor.py asks it for its own.
test-kernels: export PYTEST_ADDOPTS := $(TWO) -m "not slow" -k "not scikit_learn_check"
test-kernels: $(VENV)/installed-dev
	OPENBLAS_CORETYPE=Haswell $(BIN)/python -m pytest $(NUMERICAL)
	features=$$($(BIN)/python tests/processor.py) && \
	OPENBLAS_CORETYPE=Nehalem NUMBA_CPU_NAME=generic NUMBA_CACHE_DIR=$(CURDIR)/$(VENV)/numba-generic \
	ATEN_CPU_CAPABILITY=default NPY_DISABLE_CPU_FEATURES="$$features" \
		$(BIN)/python -m pytest $(NUMERICAL) $(NUMERICAL_TORCH)

# Without torch, whose floor is its own, and without the fuzzers: what is promised of damaged Parquet files needs a pyarrow
# that has its own faults mended. Benchmarks, the JavaScript of the page for tagging and what the repository's own files
# say are left out, too: neither the bounds of arrays nor versions bear on them. Compiled code checks the bounds of its
# arrays in this run: 5 to 10% more time in two heavy files once compiled. numba would keep what it compiles so with what
# it compiles without, hence a cache of its own.
test-oldest: $(VENV)-oldest/installed
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/$(VENV)-oldest/numba-bounds \
		$(VENV)-oldest/bin/python -m pytest $(TWO) -m "not slow" tests --ignore-glob="tests/test_torch_*" \
		$(addprefix --ignore=tests/test_,fuzz.py benchmarks.py benchmarks_chunks.py benchmarks_dask.py tagging_page.py \
		security_page.py supply_chain.py packaging.py)

# With another seed each time, which is printed; CI tries some thousand of one seed (tests/test_fuzz.py).
fuzz: $(VENV)/installed-dev
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

# LibMultiLabel has an environment of its own; where it can't be made, its lines say so and the rest runs.
bench: $(VENV)/installed-dev
	-$(BIN)/python -m benchmarks.adapters.libmultilabel
	$(BIN)/python -m benchmarks.run --output benchmarks/results/bench.json $(BENCH_ARGS)

# One method of the comparison on public sets, which needs other versions than those here.
boomer: $(VENV)-boomer/installed

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy src

imports: $(VENV)/installed-dev
	$(BIN)/lint-imports

# The versions of constraints.txt with the hashes of all their files, so that every system and Python finds its own.
# Only versions that constraints.txt doesn't name are chosen here, and only where the files don't name them yet.
LOCK := pip compile --quiet --universal --python-version 3.11 --constraints constraints.txt --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links
lock: $(VENV)-release/installed
	$(VENV)-release/bin/uv $(LOCK) pyproject.toml --extra paper --output-file requirements-run.txt
	$(VENV)-release/bin/uv $(LOCK) --group build --output-file requirements-build.txt
	$(VENV)-release/bin/uv $(LOCK) --group release --output-file requirements-release.txt

# The same bytes from the same commit: files are stamped with its time. The list of parts (SBOM, CycloneDX) has the wheel,
# its dependencies and those of the extra `paper`, with their hashes.
DIST := dist
release: export SOURCE_DATE_EPOCH := $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null))
release: $(VENV)-release/installed
	rm -rf $(DIST)
	$(VENV)-release/bin/python -m build --no-isolation --outdir $(DIST)
	cd $(DIST) && version=$$(ls mlrh-*.whl | cut -d - -f 2) && hash=$$(sha256sum mlrh-*.whl | cut -d " " -f 1) && \
	{ echo "mlrh==$$version --hash=sha256:$$hash"; cat $(CURDIR)/requirements-run.txt; } | \
	$(abspath $(VENV))-release/bin/cyclonedx-py requirements --output-reproducible -o mlrh-$$version.cdx.json -
	cd $(DIST) && sha256sum mlrh-* > SHA256SUMS

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-release $(VENV)-libmultilabel $(VENV)-boomer build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .schemathesis
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The stamps: an install is repeated only after one of the files it follows has changed.
# What it needs must have the hashes of two files; the package itself is then built without the network.
$(VENV)/installed: pyproject.toml requirements-run.txt requirements-build.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		-r requirements-run.txt -r requirements-build.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(VENV)/installed $@

$(VENV)-release/installed: requirements-release.txt
	$(PYTHON) -m venv $(VENV)-release
	$(VENV)-release/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-release.txt
	touch $@

$(VENV)-boomer/installed: requirements-boomer.txt
	$(PYTHON) -m venv $(VENV)-boomer
	$(VENV)-boomer/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-boomer.txt
	touch $@

$(VENV)-oldest/installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-oldest.txt -e .
	touch $@
