#!/usr/bin/env bash
# kNN-Per, Tables 2 and 3: all methods of its paper on one dataset, for clients seen and unseen in training.
#
#   bash examples/papers/knn-per/tables.sh writers
#   bash examples/papers/knn-per/tables.sh fashion-mnist --root FOLDER     emnist, femnist, cifar10, cifar10-v2,
#                                                                         cifar100, cifar100-v2, shakespeare
#
# With --paper all clients train for Table 2, and a fifth join after training for Table 3. The small size runs the
# second alone; its table gives the clients seen in training (Table 2) and the others apart.
# More options: examples/papers/setup.sh.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"
. "$(dirname "$0")/datasets.sh"

setting methods "$experiment" methods
setting late "$experiment" new-clients
setting refit "$experiment" refit
[ "${refit[0]}" = false ] || how+=(--refit)
how+=(--answer-train)  # for the parentheses of Table 3
for share in "${late[@]}"; do
  runs=$(runs "$experiment")/new-clients-$share
  partitions=()
  for seed in "${draws[@]}"; do
    partitions+=("$runs/partition-$seed")
    pfl partition "$dataset" "${who[@]}" "${root[@]+"${root[@]}"}" --new-clients "$share" --seed "$seed" \
      -o "$runs/partition-$seed" -q
  done
  pfl compare "${partitions[@]}" -o "$runs" "${how[@]}" "${weights[@]+"${weights[@]}"}" \
    "${tuning[@]+"${tuning[@]}"}" --methods "${methods[@]}"
done
