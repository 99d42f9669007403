#!/usr/bin/env bash
# Four hospitals train Ditto without a patient leaving any of them: a server and four sites in five processes, which
# exchange message files in a folder. The result is compared with the simulation --apart: the difference is 0.
#
#   bash examples/deploy/four_hospitals.sh [DIR]     artifacts go to DIR (default runs/four-hospitals), which must be new
set -euo pipefail

runs=${1:-runs/four-hospitals}
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Each hospital's own table. In a pilot, the coordinator has tables like these: here, the same ones.
"$python" "$home/examples/deploy/hospital_tables.py" "$runs/tables"

# The coordinator simulates the method and makes a federation of it.
pfl import "$runs"/tables/*.csv --label 'num>0' --leave-out slope,ca,thal --missing median --standardize -o "$runs/data" -q > /dev/null
pfl partition "$runs/data" -o "$runs/partition" -q > /dev/null
pfl personalize ditto "$runs/partition" --model mlp --rounds 5 --participation 0.75 --apart -o "$runs/simulation" -q > /dev/null
pfl federation create "$runs/simulation" -o "$runs/fed" -q > /dev/null

play "$runs/fed" "$runs/server"
"$python" "$home/examples/deploy/compare_with_simulation.py" "$runs"
