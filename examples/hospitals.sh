#!/usr/bin/env bash
# Heart disease in four hospitals: FLamby's published results repeated on its very split, then methods over other splits.
#
#   bash examples/hospitals.sh [DIR] [SPLITS]     artifacts go to DIR (default runs/hospitals); 10 splits unless told
#
# The tables of docs/results.md are of 100 splits. What is there already is not made again.
set -euo pipefail

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
command -v pfl > /dev/null || { echo "pfl is not installed: bash examples/quickstart.sh" >&2; exit 3; }
python=$(dirname "$(command -v pfl)")/python
[ -x "$python" ] || python=python3
runs=${1:-runs/hospitals}
splits=${2:-10}

# 15 rounds of 100 local steps with batches of 4 patients, as in FLamby. A learning rate is half of FLamby's: see hospitals.py.
how=(--model logistic --rounds 15 --participation 1 --steps 100 --batch-size 4 --seeds 42,43,44,45,46 -q)
pfl partition heart-disease --keep-test --fractions 1,0,0 -o "$runs/partition" -q > /dev/null
pfl compare "$runs/partition" -o "$runs/published" "${how[@]}" --lr 0.0005 \
  --methods fedavg,local,fedavg@yogi --set local.optimizer=adam --set local.epochs=50 \
  --set fedavg@yogi.server=yogi --set fedavg@yogi.server_lr=0.005 --set fedavg@yogi.beta2=0.999 --set fedavg@yogi.tau=1e-8 \
  > /dev/null
pfl compare "$runs/partition" -o "$runs/fine-tuning" "${how[@]}" --lr 0.00158 \
  --methods fedavg,fedavg-plus --set fedavg-plus.steps=100 > /dev/null
"$python" "$home/examples/hospitals.py" published "$runs"
"$python" "$home/examples/hospitals.py" repeated "$runs" "$splits"
