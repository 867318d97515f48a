# `make run` trains the digits network, `make test` checks everything that needs no GPU, and
# `make test-cuda` what does, on host devices: CUDA that the CPU stands in for (docs/testing.md). Its
# budget is 8 minutes on two cores, 20 where all kernels have to be compiled first.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Processes that run tests; each of them computes with one thread.
JOBS   ?= 2
# The CUDA extra that the driver can run ("CUDA Version: 13.0" -> ",cuda13"); none without a driver.
CUDA   := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\(1[23]\).*/,cuda\1/p' | head -n 1)
STAMP  := $(VENV)/.installed-

.PHONY: run test test-cuda clean

run: $(STAMP)train
	$(BIN)/gtensor train digits

test: $(STAMP)dev
	$(BIN)/ruff check gtensor tests profiling docs
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test-cuda: $(STAMP)dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --host-cuda=deferred \
	    -m "(gpu or multi_gpu or host_cuda) and not slow"

$(STAMP)%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*$(CUDA)]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
