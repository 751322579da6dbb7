# `make train` and `make test` are all a fresh machine needs; each first makes the virtual environment if it is not there.
#
# PYTHON  the interpreter that the virtual environment is made from: 3.11 to 3.13
# TORCH   the PyTorch build, as pip takes it; the environment remembers it, and naming another one makes a new environment
#           make train TORCH="torch==2.13.0 --index-url ..."
#           make train TORCH=installed     (the one in the site-packages of PYTHON)
# ARGS    further arguments of the program that a target runs: make train ARGS="--seed 2", make tests ARGS="-k replay"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INSTALLED_TORCH := $(shell cat $(STAMP) 2>/dev/null)
TORCH ?= $(or $(INSTALLED_TORCH),torch==2.13.0)
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n 2 --dist loadgroup
EXAMPLES := $(wildcard examples/*.py)

export MPLBACKEND ?= Agg

.DEFAULT_GOAL := help
.PHONY: help train test test-full test-all tests costs lint types resume learning chaos fuzz mutants examples docs dist pictures bench format install clean FORCE $(EXAMPLES)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

train: $(STAMP) ## train PPO on CartPole-v1: logs, best model, learning curve
	$(BIN)/python examples/ppo_cartpole.py $(ARGS)

test: lint types tests ## lint, format check, types and the fast tier of the tests: the verdict on a change, in minutes

test-full: $(STAMP) ## the tests above the fast tier's limit: what CI runs besides
	$(PYTEST) $(PARALLEL) -m "full and not slow" $(ARGS)

test-all: test test-full ## both tiers

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

tests: $(STAMP) ## the fast tier alone
	$(PYTEST) $(PARALLEL) $(ARGS)

costs: $(STAMP) ## measure what each test costs, caches cold, and write the tiers anew: ARGS="tests/unit/data" for some
	$(BIN)/python -m tests.costs $(ARGS)

resume: $(STAMP) ## slow: every kind of run, killed again and again, comes to the same bit for bit
	$(PYTEST) -m slow tests/resume $(ARGS)

learning: $(STAMP) ## the other slow tests: do the algorithms learn?
	$(PYTEST) -m slow --timeout 7200 --ignore tests/resume $(ARGS)

chaos: $(STAMP) ## a long training through 500 random faults: ARGS="--faults 50", "--seed 2", "--write"
	$(BIN)/python -m benchmarks.chaos $(ARGS)

fuzz: $(STAMP) ## damage the files that are read, 100,000 times for each reader: ARGS="--mutations 1000 --only buffer"
	$(BIN)/python -m tests.security.fuzz $(ARGS)

mutants: $(STAMP) ## plant mistakes, one at a time, and see that the fast tier finds each; some minutes: ARGS="--only fsync"
	$(BIN)/python -m tests.mutants $(ARGS)

examples: $(EXAMPLES) ## every example in its short form: --jobs=2 for two at a time

$(EXAMPLES): $(STAMP)
	$(BIN)/python $@ --short

# No --quiet: it would hide the warnings from --strict too.
docs: $(STAMP) ## the documentation into site/, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(STAMP) ## the wheel and the sdist into dist/
	$(BIN)/python -m hatchling build --directory dist

pictures: $(STAMP) ## the pictures of the docs that show runs; some minutes
	$(BIN)/python -m pictures.symptoms
	$(BIN)/python -m pictures.gallery
	$(BIN)/python -m pictures.lander
	$(BIN)/python -m pictures.published
	$(BIN)/python -m pictures.plotting

bench: $(STAMP) ## speed beside peers, each in a virtual environment of its own: ARGS="--quick", "--write", "--case sac"
	$(BIN)/python benchmarks/speed.py $(ARGS)

format: $(STAMP) ## format the code and fix what lint can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(STAMP) ## the virtual environment only

clean: ## remove everything that make made
	rm -rf $(VENV) site build dist runs benchmarks/.peers .mypy_cache .ruff_cache .pytest_cache .inductor
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first: left to the other packages, pip would choose its newest build.
# The stamp is written last and holds the build, so an interrupted or another installation starts anew.
$(STAMP): pyproject.toml requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rltrainer needs Python 3.11 or newer; name one: make PYTHON=python3.12")'
ifeq ($(TORCH),installed)
	$(PYTHON) -m venv $(if $(INSTALLED_TORCH),,--clear) --system-site-packages $(VENV)
	@$(BIN)/python -c 'import torch' || { echo 'TORCH=installed: the site-packages of $(PYTHON) (not of a virtual environment) have no torch; leave TORCH out to install one' >&2; exit 1; }
else
	$(PYTHON) -m venv $(if $(INSTALLED_TORCH),,--clear) $(VENV)
	$(PIP) install $(TORCH)
endif
	$(PIP) install -r requirements/dev.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@echo '$(TORCH)' > $@

ifneq ($(TORCH),$(INSTALLED_TORCH))
override INSTALLED_TORCH :=
$(STAMP): FORCE
endif
