#!/usr/bin/env bash
# What do 20 % poisoned clients do to FedAvg, and which aggregators withstand them?
#
#   bash examples/robust.sh [DIR]     artifacts go to DIR (default runs/robust)
#
# One comparison for each attack: the mean and four robust aggregators, on the accuracy of honest clients.
set -euo pipefail

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
command -v pfl > /dev/null || { echo "pfl is not installed: bash examples/quickstart.sh" >&2; exit 3; }
runs=${1:-runs/robust}

methods=fedavg,fedavg@median,fedavg@trimmed-mean,fedavg@krum,fedavg@norm-clip
rules=(
  --set fedavg@median.training.aggregator=median --set fedavg@trimmed-mean.training.aggregator=trimmed-mean
  --set fedavg@krum.training.aggregator=krum --set fedavg@norm-clip.training.aggregator=norm-clip
)
how=(--model logistic --rounds 60 --participation 1 --lr 0.1 --eval-every 60 --threads 1 --seeds 0 -q)
for attack in none flip scale random; do
  pfl partition writers --poison "0.2:$attack" -o "$runs/p-$attack" -q > /dev/null
  pfl compare "$runs/p-$attack" -o "$runs/$attack" --methods "$methods" "${rules[@]}" "${how[@]}" > /dev/null ||
    echo "a run failed: under some attacks the mean ends with parameters that are not finite" >&2
  echo "$attack"
  cut -d, -f1-3 "$runs/$attack/comparison/table.csv"
done
