# Everything lives in .venv; nothing is installed outside of it.

PYTHON  ?= python3
WORKERS ?= 2

VENV := .venv
BIN  := $(VENV)/bin

# What is installed, for which versions of these two files: a stamp newer than both needs no reinstall.
PINS := pyproject.toml constraints.txt
BASE := $(VENV)/.installed-demo
FULL := $(VENV)/.installed-all

DEMO_EXTRAS := cli,experiments,reports
ALL_EXTRAS  := cli,experiments,reports,data,torch,flower,docs,dev

# pip before 25.3 also applies PIP_CONSTRAINT to the build backend; later ones ask for PIP_BUILD_CONSTRAINT.
INSTALL := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=constraints.txt \
	PIP_BUILD_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --quiet --editable

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo setup docs package check test lowest clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' Makefile

DEMO := $(BIN)/sortition compare --diagnose --rounds 200 --samplers proportional,empirical-bayes,optimal

demo: $(BASE) ## Two federations, one where adaptive sampling pays and one where it does not
	@$(DEMO) --report demo-report.html
	@echo
	@$(DEMO) --problem sortition.lab.problems.softmax:alike_federation

setup: $(FULL) ## Install the library with every extra into .venv

docs: $(FULL) ## Build the site into docs/_build/html: tutorials run, warnings are errors, links are checked
	$(BIN)/sphinx-build -W --keep-going --nitpicky --quiet --fresh-env -b html -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html
	@echo "The site: docs/_build/html/index.html"

# The sdist is built from here, the wheel from the sdist; what a user's program sees of it is checked with mypy.
CLEAN := .venv-clean
package: $(FULL) ## Build sdist and wheel into dist, install them into a clean environment, and use them there
	rm -rf dist $(CLEAN)
	$(BIN)/python -m hatchling build --target sdist --directory dist
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
		$(BIN)/python -m pip wheel --quiet --quiet --no-deps --wheel-dir dist dist/*.tar.gz
	$(PYTHON) -m venv $(CLEAN)
	PIP_CONSTRAINT=constraints.txt $(CLEAN)/bin/python -m pip install --quiet --quiet dist/*.whl
	cd dist && ../$(CLEAN)/bin/python -W error ../tests/downstream.py
	cd dist && ../$(BIN)/mypy --strict --config-file= --python-executable ../$(CLEAN)/bin/python ../tests/downstream.py

check: $(FULL) ## Lint, format, types, import layers, doctests, the site, the package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest --quiet --doctest-modules src
	$(MAKE) --no-print-directory docs package

test: setup check ## Setup, check, and then every test
	$(BIN)/pytest --numprocesses $(WORKERS)

lowest: ## Test with the lowest versions that pyproject.toml allows, in .venv-lowest
	$(PYTHON) -m venv .venv-lowest
	PIP_CONSTRAINT=constraints-lowest.txt .venv-lowest/bin/python -m pip install --quiet --editable \
		'.[cli,experiments,reports,flower]' 'flwr[simulation]' pytest pytest-xdist 'hypothesis>=6.130'
	.venv-lowest/bin/python -m pytest --numprocesses $(WORKERS) --override-ini filterwarnings=default  # old packages warn

clean: ## Remove .venv, builds and caches
	rm -rf $(VENV) .venv-lowest $(CLEAN) build dist docs/_build .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# pip is the last thing that venv puts in place, so a half-made .venv is made again.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "error: $(PYTHON) is missing or older than 3.11; name another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "error: $(PYTHON) has no venv module; install it (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# The environment is an order-only prerequisite: it must exist, its age says nothing.
$(BASE): $(PINS) | $(BIN)/pip
	@echo "Installing sortition[$(DEMO_EXTRAS)] into $(VENV) (a minute or so the first time)"
	@$(INSTALL) '.[$(DEMO_EXTRAS)]'
	@touch $@

$(FULL): $(PINS) | $(BIN)/pip
	@echo "Installing sortition[$(ALL_EXTRAS)] into $(VENV) (a minute or so the first time)"
	@$(INSTALL) '.[$(ALL_EXTRAS)]'
	@touch $(BASE) $@
