#!/usr/bin/env bash
# Build the wheel and the source distribution, and try each where nothing else of this project can be imported.
#
#   bash tests/release.sh             all three parts, which can also be given by name:
#   bash tests/release.sh lowest      the wheel with the lowest versions that pyproject.toml allows (the last patch)
#   bash tests/release.sh newest      the source distribution with the newest versions
#   bash tests/release.sh extras      the wheel with the extras that one file can try
#   bash tests/release.sh --torch     PyTorch and torchvision in their lowest versions too, which are large
#
# Each part prints the versions that it installed, and what passed.
# What is built lies in dist/. Each environment plays the chain of commands, `simulate`, and reads an artifact of schema 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
home=$PWD parts="" torch=""
for word in "$@"; do
  case $word in
    lowest | newest | extras) parts="$parts $word" ;;
    --torch) torch=$word ;;
    *) echo "unknown part '$word': choose from lowest, newest, extras and --torch" >&2 && exit 2 ;;
  esac
done
parts=${parts:-lowest newest extras}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/build"
"$work/build/bin/python" -m pip install --quiet --disable-pip-version-check build
rm -rf dist
"$work/build/bin/python" -m build --outdir dist . > "$work/build.log" || { tail -20 "$work/build.log"; exit 1; }
"$work/build/bin/python" - "$torch" > "$work/lowest.txt" << 'END'
import re, sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
for wanted in [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]:
    name, lowest = re.match(r"([\w-]+)(?:\[[^]]*\])?>=([\d.]+)", wanted + ">=0").groups()
    if lowest != "0" and (name not in ("torch", "torchvision") or sys.argv[1] == "--torch"):
        print(f"{name}=={lowest}" + ".*" * (lowest.count(".") < 2))
END

try() { # the name of an environment, and what pip installs there
  local at=$work/$1
  "${PYTHON:-python3}" -m venv "$at"
  "$at/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"
  echo "$1: $("$at/bin/python" --version) with $("$at/bin/python" -m pip list --format freeze --disable-pip-version-check | tr '\n' ' ')"
  (
    mkdir "$at/away"
    cd "$at/away"
    PATH="$at/bin:$PATH"
    unset PYTHONPATH
    python -c 'import pflcli, sys; assert pflcli.__file__.startswith(sys.prefix), pflcli.__file__'
    pfl doctor
    pfl partition writers --clients 12 -o p -q
    pfl train-global p -o b --model mlp --rounds 5 -q
    pfl extract b -o e -q
    pfl build-datastore e -o d -q
    pfl compare p -o c --model mlp --rounds 5 --methods fedavg,ditto,knn-per -q
    pfl report c/comparison -o page.html -q
    pfl show "$home/tests/golden/schema-1/predictions" --verify
    python - << 'END'
import numpy as np
import pflcli
draw = np.random.default_rng(0)
x, y = draw.normal(size=(240, 5)).astype(np.float32), draw.integers(0, 2, 240)
federation = pflcli.Federation.from_arrays(x, y, np.repeat(np.arange(6), 40))
print(pflcli.table({name: pflcli.simulate(name, federation, rounds=3, quiet=True) for name in ("fedavg", "ditto")}))
END
  )
  echo "$1: passed: doctor, the chain from partition to report, an artifact of schema 1, simulate and table"
}

try_extras() {
  cd "$work/extras/away"
  PATH="$work/extras/bin:$PATH"
  pfl export c/seed-0/ditto --client "$(sed -n "2s/^[0-9]*,\([^,]*\),.*/\1/p" p/clients.csv)" -o onnx -q
  pfl train-global p -o private --model mlp --rounds 2 --dp-epsilon 8 --dp-delta 1e-3 -q
  pfl tune ditto p -o tuned --model mlp --rounds 2 --trials 2 --sampler optuna -q
  pfl show c/comparison --plot picture.png
  python -c 'import pandas; frame = pandas.DataFrame({"who": list("ab") * 20, "y": [0, 1] * 20, "x": range(40)}); frame.to_excel("t.xlsx", index=False); frame.to_parquet("t.parquet")'
  pfl import t.xlsx --client who --label y -o excel -q
  pfl import t.parquet --client who --label y -o parquet -q
  echo "extras: passed: export, differential privacy, Optuna, pictures, Excel and Parquet"
}

for part in $parts; do
  case $part in
    lowest) try lowest dist/*.whl -c "$work/lowest.txt" ;;
    newest) try newest dist/*.tar.gz ;;
    extras)
      try extras "$(echo dist/*.whl)[excel,export,parquet,pictures,privacy,spss,tune]"
      (try_extras)
      ;;
  esac
done
