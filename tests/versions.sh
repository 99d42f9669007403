#!/usr/bin/env bash
# Test pfl with another version of a package, in an environment of its own on top of .venv-test, which stays as it is.
#
#   bash tests/versions.sh                     the lowest and the newest version of Typer that pyproject.toml allows
#   bash tests/versions.sh typer==0.22.0 ...   these versions
#   TESTS="tests/cli" bash tests/versions.sh   other tests than those of the command line
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
shared=$(.venv-test/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
lowest=$(sed -n 's/^ *"typer>=\([0-9.]*\)".*/\1/p' pyproject.toml)
if [ $# -eq 0 ]; then
  set -- "typer==$lowest" "typer>=$lowest"
fi
read -r -a tests <<< "${TESTS:-tests/cli/test_command_line.py tests/cli/test_completion.py tests/cli/test_terminal.py}"
for wanted in "$@"; do
  venv=$(mktemp -d)
  trap 'rm -rf "$venv"' EXIT
  .venv-test/bin/python -m venv --without-pip "$venv"
  packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  .venv-test/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target "$packages" "$wanted"
  echo "$shared" > "$packages/shared.pth" # after the folder of this environment, so that its packages win
  "$venv/bin/python" -c 'import importlib.metadata as m, sys; print(*(m.version(n) for n in sys.argv[1:]))' "${wanted%%[<>=~]*}"
  PYTHONPATH=$PWD OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest -q -p no:cacheprovider "${tests[@]}"
  rm -rf "$venv"
done
