# Everything runs in a virtual environment that the first target to need it sets up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-faults test-fuzz test-browser test-ray test-kernels test-kernels-quick test-gpu \
	test-min lint format docs benchmark clean

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

setup: $(READY)  ## make the virtual environment

# Exact versions come from the constraints file, so that a new machine gets what was tested;
# pip is told of torch first, because another package's looser wish could bring a build with gigabytes of CUDA.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

# With the extras that tests and tools need.
$(READY): $(INSTALLED)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	@touch $@

quickstart: $(INSTALLED)  ## train on the embedded data, show before and after
	rm -rf runs/quickstart
	$(BIN)/diffaug quickstart

# Two processes, a file at a time: what the tests of a file share is made once.
PYTEST := pytest --numprocesses 2 --dist loadfile
test: $(READY)   ## run the tests
	$(BIN)/$(PYTEST)

# Minutes: kills, full disks (mounting a small file system needs root; without, that part is skipped) and damaged files.
test-faults: $(READY)  ## kill training runs, fill their disk and damage their files
	OMP_NUM_THREADS=1 $(BIN)/pytest --capture=no tests/faults

# `make test` tries some 800 inputs, the same ones every time; this tries 100 times as many, others on every run.
FUZZ ?= 100
test-fuzz: $(READY)  ## try hostile recipes, settings, data files, folders and text at length
	DIFFAUG_FUZZ=$(FUZZ) $(BIN)/pytest tests/fuzz

# `make test` leaves these out where there is no browser; here that is an error. Chromium is a package of most systems
# (apt-get install chromium), or comes with `playwright install chromium`.
test-browser: $(READY)  ## run the tests of the pages in headless Chromium
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[browser]'
	DIFFAUG_BROWSER=chromium $(BIN)/pytest tests/report/test_report_browser.py tests/serve/test_serve_browser.py

# Minutes, and Ray is large: `make test` leaves these out.
test-ray: $(READY)  ## run a Ray cluster of several nodes on this machine, and kill them at work
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[ray]'
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/cluster

# Every package at the lower bound that pyproject.toml states, but torch: of its older versions the package index has builds
# with gigabytes of CUDA only, so it is the one of constraints.txt unless TORCH names another. The environment is large, and
# stays only if something failed.
MIN := build/lowest
test-min:        ## run the tests with the lowest versions that pyproject.toml allows
	rm -rf $(MIN)
	$(PYTHON) -m venv $(MIN)
	$(PYTHON) .ci/lower-bounds.py > $(MIN)/constraints.txt
	$(MIN)/bin/pip install --quiet --constraint $(MIN)/constraints.txt torch
	$(MIN)/bin/pip install --quiet --constraint $(MIN)/constraints.txt --editable '.[test]'
	$(MIN)/bin/$(PYTEST)
	rm -rf $(MIN)

# Triton comes with torch's builds for GPUs, in the version they need. It is in a folder of its own, so that nothing else
# in the virtual environment meets it.
TRITON := build/triton
$(TRITON): $(READY)
	$(BIN)/pip install --quiet --no-deps --target $@ triton==3.9.0

INTERPRETED := PYTHONPATH=$(TRITON) TRITON_INTERPRET=1 $(BIN)/$(PYTEST) tests/kernels
test-kernels: $(TRITON)  ## run our GPU kernels on this machine's CPU, in Triton's interpreter
	$(INTERPRETED)

test-kernels-quick: $(TRITON)  ## the same without the tests that take minutes
	$(INTERPRETED) -m 'not slow_interpreted'

test-gpu: $(READY)  ## run what needs a GPU
	$(BIN)/python -c 'import torch; assert torch.cuda.is_available(), "there is no GPU here"'
	$(BIN)/pytest tests/kernels tests/training/test_cuda_graphs.py tests/training/test_training_run.py

lint: $(READY)   ## check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## put the code in form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)   ## build the documentation into build/site
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/stage.py build/docs
	$(BIN)/zensical build --strict --clean

benchmark: $(READY)  ## compare the speed of encode with sentence-transformers on this machine
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[benchmark]'
	$(BIN)/python benchmarks/encode.py

clean:           ## remove the virtual environment and caches
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache build src/*.egg-info
