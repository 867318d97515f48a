# `make run` trains the digits network, `make check` runs the quick tests, `make test` checks
# everything, the CUDA half of it on host devices (docs/testing.md) and in part, and `make test-cuda`
# all tests that need a GPU, on host devices. On two cores they may take 90 seconds, 8 and
# 8 minutes, the second 14 where all is new. `make docs` builds the site.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Processes that run tests; each of them computes with one thread. On two cores a third computes
# while the others wait for programs that they started.
JOBS   ?= 3
# The CUDA extra that the driver can run ("CUDA Version: 13.0" -> ",cuda13"); none without a driver.
CUDA   := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\(1[23]\).*/,cuda\1/p' | head -n 1)
STAMP  := $(VENV)/.installed-
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
ON_CUDA := $(PYTEST) --host-cuda=deferred -m "(gpu or multi_gpu or host_cuda) and not slow"
# What of the tests that need a GPU is part of `make test`.
CUDA_TESTS := $(addprefix tests/,memory backend nn checkpoint interchange ops/test_definitions.py \
    func hostcuda/test_budgets.py hostcuda/test_races.py hostcuda/test_shadows.py \
    hostcuda/test_product_memory.py hostcuda/test_update_launches.py optim ops/linalg profiler)

# Containers often set it: then each of the hundreds of processes that tests start compiles all
# modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run check test style test-cuda docs gallery clean

run: $(STAMP)train
	$(BIN)/gtensor train digits

check: style
	$(PYTEST) -m quick

test: style
	$(PYTEST)
	$(ON_CUDA) -k "not in_every_dtype" $(CUDA_TESTS)

# mypy keeps what it found in .mypy_cache: only the first run takes long.
style: $(STAMP)dev
	$(BIN)/ruff check gtensor tests profiling docs
	$(BIN)/mypy

test-cuda: $(STAMP)dev
	$(ON_CUDA) -k "not in_one_dtype"

# Without a network, once that is installed; open site/index.html. A broken link ends it.
docs: $(STAMP)docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The pictures of docs/gallery and their page. Those of web pages need npm, which fetches Chromium.
gallery: $(STAMP)dev
	OMP_NUM_THREADS=1 $(BIN)/python docs/gallery.py

# Kernels of the CPU are compiled by the installation.
$(STAMP)%: pyproject.toml $(wildcard kernels/cpu/*.[ch] gtensor/backend/*.[ch] gtensor/ops/define/c/*.c)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*$(CUDA)]'
	touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
