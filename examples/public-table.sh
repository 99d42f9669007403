#!/usr/bin/env bash
# The Fashion-MNIST table that PFLlib publishes: 20 clients, Dirichlet 0.1, 75 % of each client for training, FedAvg's CNN.
#
#   bash examples/public-table.sh --root FOLDER
#
# There: batch 10, learning rate 0.005, 2,000 rounds of one epoch, all clients, the best test round of each method.
# Here --paper runs these 2,000 rounds and reports the last; without it, 5 rounds at a learning rate of 0.02.
set -euo pipefail
. "$(dirname "$0")/papers/setup.sh"

runs=$(runs)
how=(--rounds 5 --lr 0.02)
methods=fedavg,local,fedavg-plus,fedper
if [ "$size" = paper ]; then
  how=(--rounds 2000 --lr 0.005)
  methods+=,fedprox,ditto,apfl,fedrep,fedbabu,fedamp
fi
partitions=()
for seed in "${seeds[@]}"; do
  partitions+=("$runs/partition-$seed")
  pfl partition fashion-mnist --scheme dirichlet --set alpha=0.1 --clients 20 --min-samples 40 --fractions 0.75,0,0.25 \
    "${root[@]}" --seed "$seed" -o "$runs/partition-$seed" -q
done
pfl compare "${partitions[@]}" -o "$runs" --model cnn --participation 1 --batch-size 10 "${how[@]}" --methods "$methods"
