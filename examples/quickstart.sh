#!/usr/bin/env bash
# The whole chain on the embedded data: 60 people's handwriting. Half a minute on two cores after the installation.
#
#   bash examples/quickstart.sh [DIR]     artifacts go to DIR (default: runs/quickstart beside this project)
set -euo pipefail

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
runs=${1:-$home/runs/quickstart}

if [ ! -x "$home/.venv/bin/pfl" ]; then
  "${PYTHON:-python3}" -m venv "$home/.venv"
  "$home/.venv/bin/python" -m pip install --quiet --disable-pip-version-check -e "$home[pictures]"
fi
PATH="$home/.venv/bin:$PATH"

began=$SECONDS
pfl partition writers --scheme natural -o "$runs/partition"
pfl train-global "$runs/partition" -o "$runs/backbone" \
  --model mlp --rounds 100 --participation 0.2 --batch-size 10 --lr 0.1
pfl extract "$runs/backbone" -o "$runs/embeddings"
pfl build-datastore "$runs/embeddings" -o "$runs/datastore"
for method in fedavg local fedavg-plus knn-per; do
  pfl personalize "$method" "$runs/datastore" -o "$runs/$method"
done
pfl evaluate "$runs"/{fedavg,local,fedavg-plus,knn-per} -o "$runs/evaluation"

pfl report "$runs/evaluation" -o "$runs/report.html"

echo "chain: $((SECONDS - began)) s"
echo "table:   $runs/evaluation/table.md"
echo "picture: $runs/evaluation/accuracy.png"
echo "page:    $runs/report.html"
