#!/usr/bin/env bash
# FedHAM and the baselines of its paper on V-MNIST, trained for longer than tables.sh does, three seeds, in one table.
#
#   bash examples/papers/fedham/trained.sh --root FOLDER
#
# The learning rate is the better of 0.03 and 0.1 by validation accuracy after 300 rounds of partition 0, which is 0.1
# for fedavg, fedper, fedhealth and fedamp. FedHAM, whose rounds take twelve times as long, has 200 of them. FedSGD takes one
# batch of each client a round, so it has as many rounds as the others have batches. FedAvg+ trains the head alone (FTL).
set -euo pipefail
. "$(dirname "$0")/../setup.sh"

runs=$(runs v-mnist)
partitions=()
for seed in "${draws[@]}"; do
  partitions+=("$runs/partition-$seed")
  pfl partition v-mnist --scheme natural --part 1/4 "${root[@]+"${root[@]}"}" --seed "$seed" -o "$runs/partition-$seed" -q
done
apart=(--set fedham@faithful.form=faithful --set fedavg-plus.upper=1)
for label in fedham fedham@faithful; do apart+=(--set "$label.training.rounds=200"); done
apart+=(--set fedsgd.batch=minibatch --set fedsgd.training.rounds=4800 --set fedsgd.training.eval_every=160)
pfl compare "${partitions[@]}" -o "$runs" --model mlp --rounds 300 --participation 1 --epochs 1 --batch-size 32 --lr 0.1 \
  --patience flat --report best --eval-every 10 "${apart[@]}" \
  --methods local,alone,fedsgd,fedavg,fedper,fedhealth,fedavg-plus,fedamp,knn-per,fedham,fedham@faithful
