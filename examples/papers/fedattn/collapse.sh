#!/usr/bin/env bash
# FedAttn, Table 1 and Figures 3 to 5: the form as printed collapses, the default does not; controls beside it.
#
#   bash examples/papers/fedattn/collapse.sh writers [--root FOLDER]       emnist, femnist
#
# faithful: as printed, with the first learning rate of the attention (server-lr); lr-RATE: with the smaller ones, as the
# report gives none. mu: with pulls towards global and neighbouring biases. stages: FedAvg first. These are the report's
# remedies. Controls: no attention (FedAvg), private biases (k = 1), random neighbours, weights not trained.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"

name=${1:-writers}
runs=$(runs "$name")
setting dataset "$name" dataset
setting who "$name" partition
setting cohort "$name" clients-a-round
setting warmup "$name" warmup
setting last "$name" last
setting rates "$name" server-lr
setting mu_g "$name" mu-g
setting mu_n "$name" mu-n
partitions=()
for seed in "${seeds[@]}"; do
  partitions+=("$runs/partition-$seed")
  pfl partition "$dataset" "${who[@]}" "${root[@]+"${root[@]}"}" --seed "$seed" -o "$runs/partition-$seed" -q
done
# So many clients a round, whatever the number of writers that are there.
clients=$(($(wc -l < "${partitions[0]}/clients.csv") - 1))
setting how "$name" training "participation=$(awk -v c="$cohort" -v n="$clients" 'BEGIN { print (c < n ? c / n : 1) }')"
methods=fedavg,fedattn,fedattn-extended@none,fedattn@k1,fedattn-extended@random,fedattn-extended@frozen
methods+=,fedattn@faithful,fedattn@mu,fedattn@stages
printed=()
for label in faithful mu stages; do
  printed+=(--set "fedattn@$label.form=faithful" --set "fedattn@$label.server_lr=${rates[0]}")
done
for rate in "${rates[@]:1}"; do
  methods+=,fedattn@lr-${rate/./_}
  printed+=(--set "fedattn@lr-${rate/./_}.form=faithful" --set "fedattn@lr-${rate/./_}.server_lr=$rate")
done
pfl compare "${partitions[@]}" -o "$runs" "${how[@]}" "${weights[@]+"${weights[@]}"}" --test-last "$last" --methods "$methods" \
  --set fedattn-extended@none.attention=none --set fedattn@k1.k=1 --set fedattn-extended@random.neighbours=random \
  --set fedattn-extended@frozen.attention=frozen "${printed[@]+"${printed[@]}"}" --set "fedattn@mu.mu_g=$mu_g" --set "fedattn@mu.mu_n=$mu_n" \
  --set "fedattn@stages.warmup=$warmup"
echo "method,test accuracy over the last $last rounds"
"$python" - "$runs/comparison/metrics.json" << 'PYTHON'
import json, sys

for method in json.load(open(sys.argv[1]))["methods"]:
    print(method["label"], f'{method["metrics"]["last_rounds_accuracy"]["value"]:.4f}', sep=",")
PYTHON
for method in fedattn fedattn@faithful fedattn@mu fedattn@stages; do
  pfl show "$runs/seed-${seeds[0]}/$method" --plot "$runs/$method.png"
done
