#!/usr/bin/env bash
# The Fashion-MNIST table that PFLlib publishes: its 20 clients, Dirichlet 0.1, 75 % of each for training, its network.
#
#   bash examples/public-table.sh --root FOLDER
#
# There: batch 10, learning rate 0.005, 2,000 rounds of one epoch, all clients, the best test round of each method.
# Here --paper runs these 2,000 rounds; without it, 40. The last round is reported, as test samples choose nothing.
set -euo pipefail
. "$(dirname "$0")/papers/setup.sh"

runs=$(runs)
((${#root[@]})) || { echo "--root FOLDER with fashion_mnist.npz is needed" >&2; exit 2; }
rounds=40 methods=fedavg,local,fedavg-plus,fedper,fedrep,ditto
if [ "$size" = paper ]; then
  rounds=2000
  methods+=,fedprox,apfl,fedbabu,fedamp
fi
mkdir -p "$runs"
[ -e "$runs/data" ] || {
  python "$home/examples/public_partition.py" "${root[1]}/fashion_mnist.npz" "$runs/dealt.npz"
  pfl import "$runs/dealt.npz" --client client --label label --features x -o "$runs/data" -q
  rm "$runs/dealt.npz"
}
partitions=()
for seed in "${seeds[@]}"; do
  partitions+=("$runs/partition-$seed")
  pfl partition "$runs/data" --scheme natural --fractions 0.75,0,0.25 --seed "$seed" -o "$runs/partition-$seed" -q
done
pfl compare "${partitions[@]}" -o "$runs" --model cnn-valid --participation 1 --batch-size 10 --lr 0.005 \
  --rounds "$rounds" --methods "$methods" --set fedrep.head_epochs=1
