#!/usr/bin/env bash
# PANM: peers that have to find those with the same task, without knowing how many groups there are.
#
#   bash examples/papers/panm/clusters.sh DATASET KIND GROUPS [CLIENTS] --root FOLDER
#   bash examples/papers/panm/clusters.sh mnist rotation 4 --root FOLDER         fashion-mnist; labels 2, labels 4
#   bash examples/papers/panm/clusters.sh mnist rotation 4 100 --root FOLDER     100 clients instead of 32
#
# PANM by losses, gradients and centred gradients, and as printed (the negative control), against the other peers, IFCA,
# which is told the number of groups, the oracle, which is told the groups, and the usual baselines.
# Then precision and recall of every peer method's neighbours by round, and a picture of PANM's.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"

dataset=${1:-mnist} kind=${2:-rotation} groups=${3:-4} clients=${4:-}
runs=$(runs "$dataset-$kind-$groups${clients:+-$clients}")
who=(--clients "${clients:-100}")
how=(--model cnn --rounds 100 --epochs 5 --batch-size 32 --lr 0.05)
if [ "$size" = small ]; then
  clients=${clients:-32}
  who=(--clients "$clients" --part "1/$((clients < 320 ? 320 / clients : 1))")  # of MNIST, 160 samples a client
  how=(--model mlp --rounds 30 --epochs 3 --batch-size 16 --lr 0.1)
fi
partitions=()
for seed in "${seeds[@]}"; do
  partitions+=("$runs/partition-$seed")
  pfl partition "$dataset" --scheme clusters --set "kind=$kind" --set "groups=$groups" "${who[@]}" "${root[@]}" \
    --seed "$seed" -o "$runs/partition-$seed" -q
done
methods=local,fedavg,fedavg-plus,knn-per,ifca,fedham,fedham@faithful,fedattn,fedattn@faithful
methods+=,gossip,pens,oracle,panm,panm@grad,panm@grad-centred,panm@printed
# FedHAM sends every client the models of its cluster: with many clients, all would be too many.
((${clients:-100} < 64)) || hams=(--set "fedham.k=10" --set "fedham@faithful.k=10")
pfl compare "${partitions[@]}" -o "$runs" --participation 1 --eval-every 1 "${how[@]}" --methods "$methods" \
  --set "ifca.k=$groups" --set panm@grad.metric=grad --set panm@grad-centred.metric=grad-centred \
  --set panm@printed.em=poster --set fedham@faithful.form=faithful --set fedattn@faithful.form=faithful \
  "${hams[@]+"${hams[@]}"}"
for method in gossip pens panm panm@grad panm@grad-centred panm@printed; do
  for seed in "${seeds[@]}"; do
    echo "$method, seed $seed, last round: $(tail -n 1 "$runs/seed-$seed/$method/neighbours.csv")"
  done
  pfl show "$runs/seed-${seeds[0]}/$method" --plot "$runs/$method.png"
done
