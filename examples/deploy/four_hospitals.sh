#!/usr/bin/env bash
# Four hospitals train Ditto without a patient leaving any of them: a server and four sites in five processes, which
# exchange message files in a folder. The result is compared with the simulation --apart: the difference is 0.
#
#   bash examples/deploy/four_hospitals.sh [DIR]     artifacts go to DIR (default runs/four-hospitals), which must be new
set -euo pipefail

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
command -v pfl > /dev/null || { echo "pfl is not installed: bash examples/quickstart.sh" >&2; exit 3; }
python=$(dirname "$(command -v pfl)")/python
[ -x "$python" ] || python=python3
runs=${1:-runs/four-hospitals}
export OMP_NUM_THREADS=1

# Each hospital's own table. In a pilot, the coordinator has tables like these: here, the same ones.
mkdir -p "$runs/tables"
data=$("$python" -c 'import pathlib, pflcli; print(pathlib.Path(pflcli.__file__).parent / "data/datasets/hospitals")')
columns=age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num
for pair in cleveland:cleveland hungary:hungarian switzerland:switzerland long-beach:va; do
  { echo "$columns"; cat "$data/processed.${pair#*:}.data"; } > "$runs/tables/${pair%:*}.csv"
done

# The coordinator simulates the method and makes a federation of it.
pfl import "$runs"/tables/*.csv --label 'num>0' --leave-out slope,ca,thal --missing median --standardize -o "$runs/data" -q > /dev/null
pfl partition "$runs/data" -o "$runs/partition" -q > /dev/null
pfl personalize ditto "$runs/partition" --model mlp --rounds 5 --participation 0.75 --apart -o "$runs/simulation" -q > /dev/null
pfl federation create "$runs/simulation" -o "$runs/fed" -q > /dev/null

# Each hospital looks at what will leave it, and answers messages.
for hospital in cleveland hungary switzerland long-beach; do
  (
    at=$runs/$hospital
    pfl import "$runs/tables/$hospital.csv" --like "$runs/fed" -o "$at/data" -q > /dev/null
    pfl partition "$at/data" --like "$runs/fed" --client "$hospital" -o "$at/partition" -q > /dev/null
    pfl site check "$at/partition" "$runs/fed" -o "$at/site" -q > /dev/null
    pfl site serve "$at/site" --at "$runs/exchange" --threads 1 -q > /dev/null
  ) &
done
pfl federation run "$runs/fed" --at "$runs/exchange" -o "$runs/server" --threads 1
wait

"$python" - "$runs" <<'END'
import sys
from pathlib import Path

import h5py
import numpy as np

runs, largest = Path(sys.argv[1]), 0.0
with h5py.File(runs / "simulation" / "predictions.h5") as simulated:
    for client, hospital in enumerate(sorted(["cleveland", "hungary", "switzerland", "long-beach"])):
        with h5py.File(runs / hospital / "site" / "predictions" / "predictions.h5") as own:
            for split in ("validation", "test"):
                rows = slice(*simulated[split]["offsets"][client : client + 2])
                largest = max(largest, float(np.abs(own[split]["p"][...] - simulated[split]["p"][rows]).max()))
print(f"largest difference between a probability at a hospital and in the simulation: {largest:g}")
sys.exit(largest != 0)
END
