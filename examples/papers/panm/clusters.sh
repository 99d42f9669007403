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

. "$(dirname "$0")/groups.sh"

runs=$(runs "$dataset-$kind-$groups${clients:+-$clients}")
partition
methods=local,fedavg,fedavg-plus,knn-per,ifca,fedham,fedham@faithful,fedattn,fedattn@faithful
methods+=,gossip,pens,oracle,panm,panm@grad,panm@grad-centred,panm@printed
# FedHAM sends every client the models of its cluster: with many clients, all would be too many.
setting k clusters fedham-k
(($(wc -l < "${partitions[0]}/clients.csv") < 64)) || hams=(--set "fedham.k=$k" --set "fedham@faithful.k=$k")
pfl compare "${partitions[@]}" -o "$runs" "${how[@]}" "${weights[@]+"${weights[@]}"}" --methods "$methods" \
  --set "ifca.k=$groups" --set panm@grad.metric=grad --set panm@grad-centred.metric=grad-centred \
  --set panm@printed.em=poster --set fedham@faithful.form=faithful --set fedattn@faithful.form=faithful \
  "${hams[@]+"${hams[@]}"}"
for method in gossip pens panm panm@grad panm@grad-centred panm@printed; do
  for seed in "${seeds[@]}"; do
    echo "$method, seed $seed, last round: $(tail -n 1 "$runs/seed-$seed/$method/neighbours.csv")"
  done
  pfl show "$runs/seed-${seeds[0]}/$method" --plot "$runs/$method.png"
done
