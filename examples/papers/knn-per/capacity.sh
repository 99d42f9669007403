#!/usr/bin/env bash
# kNN-Per, Figure 10: kNN-Per, FedAvg+ and Ditto for clients that join late, with ever fewer samples of their own.
#
#   bash examples/papers/knn-per/capacity.sh fashion-mnist --root FOLDER     emnist, cifar10, cifar100
#
# A fifth of the clients join after training and keep a share of what they could learn from; the global model is the
# same whatever they keep. Ditto runs its rounds for each share, the others use one backbone.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"
. "$(dirname "$0")/datasets.sh"

runs=$(runs "$experiment")
seed=${seeds[0]}
setting alphas capacity alphas
setting capacities capacity capacities
echo "alpha,capacity,method,accuracy of unseen clients"
for alpha in "${alphas[@]}"; do
  drawn_by "$alpha"
  late=("$dataset" "${who[@]}" "${root[@]+"${root[@]}"}" --new-clients 0.2 --seed "$seed")
  pfl partition "${late[@]}" -o "$runs/alpha-$alpha/partition" -q
  pfl train-global "$runs/alpha-$alpha/partition" "${how[@]}" "${weights[@]+"${weights[@]}"}" \
    -o "$runs/alpha-$alpha/backbone" -q
  for capacity in "${capacities[@]}"; do
    at=$runs/alpha-$alpha/capacity-$capacity
    pfl partition "${late[@]}" --new-capacity "$capacity" -o "$at/partition" -q
    pfl extract "$runs/alpha-$alpha/backbone" --partition "$at/partition" -o "$at/embeddings" -q
    pfl build-datastore "$at/embeddings" -o "$at/datastore" -q
    pfl personalize knn-per "$at/datastore" -o "$at/knn-per" -q
    pfl personalize fedavg-plus "$at/embeddings" -o "$at/fedavg-plus" -q
    pfl personalize ditto "$at/partition" "${how[@]}" "${weights[@]+"${weights[@]}"}" -o "$at/ditto" -q
    pfl evaluate "$at/knn-per" "$at/fedavg-plus" "$at/ditto" -o "$at/evaluation" -q
    "$python" - "$alpha" "$capacity" "$at/evaluation/metrics.json" << 'PYTHON'
import json, sys

alpha, capacity, path = sys.argv[1:]
for method in json.load(open(path))["methods"]:
    print(alpha, capacity, method["method"], f'{method["metrics"]["accuracy_unseen"]["value"]:.4f}', sep=",")
PYTHON
  done
done
