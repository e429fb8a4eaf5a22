# Two commands: `make lab` opens the course, `make test` proves it. `make help` lists the rest.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
VENV := .venv
PY := $(VENV)/bin/python
NOTEBOOK ?= notebooks/01_two_accounts.ipynb
# The stamps carry a checksum of this folder's path: an environment that was moved or copied is made anew,
# because its scripts, the editable install and the Jupyter kernel all hold absolute paths.
HERE := $(shell pwd | cksum | cut -d' ' -f1)
CORE := $(VENV)/.core-$(HERE)
TEST := $(VENV)/.test-$(HERE)
PIP := $(PY) -m pip install --disable-pip-version-check -c $(CONSTRAINTS)
# JupyterLab would ask, over the notebook, whether to fetch news: the answer is written beside it, no.
SETTINGS := $(VENV)/share/jupyter/lab/settings
NO_NEWS := {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}

.PHONY: help install lab test unit slow nbval lint report labs refresh bench bench-peers clean
.DEFAULT_GOAL := help

help:
	@echo 'make lab      install all that is needed and open JupyterLab on the first notebook'
	@echo 'make test     install all that is needed and pass every test'
	@echo 'make install  only install (into $(VENV); quick when done)'
	@echo 'make report   run the whole course headless and write it as HTML pages under build/'
	@echo 'make labs     write labs/ anew from solutions/'
	@echo 'make refresh  run notebooks/ and solutions/ anew and store their outputs'
	@echo 'make bench    measure the engine against the ceilings of this machine'
	@echo 'make bench-peers  the measuring client against guidellm, aiperf and the openai SDK (installs them under build/)'
	@echo 'make unit     only the quick tests; likewise make slow, make nbval (notebooks), make lint'
	@echo 'make clean    remove $(VENV), build/ and caches'

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("error: Python 3.11 or newer is needed and this is %d.%d; name one: make PYTHON=python3.11 ..." % v[:2])'
	@if [ ! -e $@ ] && ls $(VENV)/.core-* >/dev/null 2>&1; then \
	  echo 'This folder was moved or copied: its environment is made anew.'; rm -rf $(VENV); fi
	@$(PYTHON) -m venv $(VENV) || { echo 'error: Python could not make a virtual environment (on Debian and Ubuntu: apt install python3-venv)' >&2; rm -rf $(VENV); exit 1; }
	@echo 'Installing the course into $(VENV): a few minutes the first time.'
	$(PIP) -e .
	$(PY) -m ipykernel install --sys-prefix --name inference-lab --display-name 'Inference lab'
	@touch $@

$(TEST): $(CORE)
	$(PIP) -e '.[test]'
	@touch $@

install: $(CORE)

lab: $(CORE)
	@mkdir -p $(SETTINGS) && printf '%s\n' '$(NO_NEWS)' > $(SETTINGS)/overrides.json
	JUPYTER_PREFER_ENV_PATH=1 $(PY) -m jupyterlab --ServerApp.root_dir=. --ServerApp.ip=127.0.0.1 \
	  --LabApp.default_url=/lab/tree/$(NOTEBOOK) --LabApp.news_url=None \
	  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_FLAGS)

test: lint unit slow nbval

lint: $(TEST)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check helpers tests bench
	$(VENV)/bin/lint-imports

# Side by side on the cores there are, one torch thread each: nothing in them measures a time.
unit: $(TEST)
	OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --maxprocesses 4 --dist worksteal -m 'not slow'

# Minutes rather than seconds: blank labs in a kernel, the first notebook in a browser, long comparisons.
slow: $(TEST)
	$(PY) -m pytest -m slow

# One process: notebooks that measure must not run beside each other.
nbval: $(TEST)
	JUPYTER_PREFER_ENV_PATH=1 TQDM_DISABLE=1 $(PY) -m pytest --nbval \
	  --nbval-sanitize-with tests/notebooks/nbval-sanitize.txt --nbval-cell-timeout=300 \
	  -p no:cacheprovider notebooks solutions

report: $(CORE)
	$(PY) -m helpers.lab.export

labs: $(CORE)
	$(PY) -m helpers.lab.generate

refresh: $(CORE)
	$(PY) -m helpers.lab.execute notebooks/*.ipynb solutions/*.ipynb
	$(PY) -m helpers.lab.generate
	$(PY) -m helpers.lab.picture notebooks/02_prefill_vs_decode.ipynb roofline-figure docs/roofline.png

bench: $(TEST)
	$(PY) bench/engine_speed.py

bench-peers: $(TEST)
	$(PY) bench/peers.py

clean:
	rm -rf $(VENV) build .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
