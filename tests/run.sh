#!/usr/bin/env bash
# Install pfl with its test extras into a virtual environment of its own, check format and types, and run tests.
#
#   bash tests/run.sh                       the fast tier: the tests that tests/fast.txt lists
#   bash tests/run.sh --all                 all tests
#   bash tests/run.sh PYTEST ARGUMENTS      what pytest selects
set -euo pipefail

# Each of the hundreds of processes that tests start would compile the package.
unset PYTHONDONTWRITEBYTECODE
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=.venv-test
if [ ! -x "$venv/bin/python" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
fi
# Always: what pyproject.toml asks for may have changed since the environment was made.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[test]'

"$venv/bin/ruff" format --check .
"$venv/bin/ruff" check .
"$venv/bin/mypy"
case "${1:-}" in
  '') set -- @tests/fast.txt ;;
  --all) shift ;;
esac
# A worker per core, and one thread for each, so that workers do not compete for cores.
OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" "$venv/bin/python" -m pytest -n auto "$@"
