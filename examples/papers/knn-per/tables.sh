#!/usr/bin/env bash
# kNN-Per, Tables 2 and 3: FedAvg, Local, FedAvg+ and kNN-Per on one dataset, for clients seen and unseen in training.
#
#   bash examples/papers/knn-per/tables.sh writers
#   bash examples/papers/knn-per/tables.sh fashion-mnist --root FOLDER     emnist, femnist, cifar10, cifar100, shakespeare
#
# A fifth of the clients join after training (Table 3); the table gives them and the others apart (Table 2).
# More options: examples/papers/setup.sh.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"
. "$(dirname "$0")/datasets.sh"

runs=$(runs "$dataset")
partitions=()
for seed in "${seeds[@]}"; do
  partitions+=("$runs/partition-$seed")
  pfl partition "$dataset" "${who[@]}" "${root[@]}" --new-clients 0.2 --seed "$seed" -o "$runs/partition-$seed" -q
done
pfl compare "${partitions[@]}" -o "$runs" "${how[@]}" --methods fedavg,local,fedavg-plus,knn-per
