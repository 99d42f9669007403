#!/usr/bin/env bash
# FedHAM, Tables 2 to 4 and Figures 4 and 5: every baseline of its paper, the ablations, what is sent, time to a target.
#
#   bash examples/papers/fedham/tables.sh v-mnist --root FOLDER          v-mnist-balanced, air-quality
#
# Both forms of FedHAM, FedAttn and PANM stand beside the baselines, and two controls: each form of FedHAM with its
# attention as initialized (untrained). Seconds to a target are those of clients side by side behind links of the given
# speed, Mbit/s up and down. Pictures of the attention come last.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"

name=${1:?which: v-mnist, v-mnist-balanced or air-quality}
runs=$(runs "$name")
setting dataset "$name" dataset
setting who "$name" partition
setting how "$name" training
setting target "$name" target
setting link "$name" link
setting rounds "$name" figure-5
setting counts "$name" clusters
setting nearest "$name" nearest
setting lam "$name" lam
setting upper "$name" upper
setting warmup "$name" figure-5-warmup
partitions=()
for seed in "${draws[@]}"; do
  partitions+=("$runs/partition-$seed")
  pfl partition "$dataset" "${who[@]}" "${root[@]+"${root[@]}"}" --seed "$seed" -o "$runs/partition-$seed" -q
done
methods=local,fedsgd,fedsgd@minibatch,fedavg,fedprox,fedper,fedhealth,fedavg-plus,fedavg-plus@ftl,fedbabu,fedamp,knn-per
methods+=,fedham,fedham@faithful,fedham@untrained,fedham@faithful-untrained,fedham@aml1,fedham@aml2,fedham@ftl,fedham@lambda
methods+=,fedattn,fedattn@faithful,panm,panm@grad
clusters=()
for count in "${counts[@]+"${counts[@]}"}"; do
  if [ "$count" = mean-shift ]; then
    methods+=,fedham@mean-shift
    clusters+=(--set fedham@mean-shift.clustering=mean-shift)
  elif [ "$count" = nearest ]; then  # the most similar of the others' uploads, 1 / nearest of them
    methods+=,fedham@nearest
    clusters+=(--set fedham@nearest.clustering=nearest --set "fedham@nearest.k=$nearest")
  else
    methods+=,fedham@k$count
    clusters+=(--set "fedham@k$count.k=$count")
  fi
done
pfl compare "${partitions[@]}" -o "$runs" "${how[@]}" "${weights[@]+"${weights[@]}"}" \
  "${tuning[@]+"${tuning[@]}"}" --methods "$methods" \
  --set fedsgd@minibatch.batch=minibatch --set "fedham@lambda.lam=$lam" --set "fedavg-plus@ftl.upper=$upper" \
  --set fedham@faithful.form=faithful --set fedham@untrained.ham_epochs=0 --set fedham@faithful-untrained.form=faithful \
  --set fedham@faithful-untrained.ham_epochs=0 --set fedham@aml1.variant=aml1 --set fedham@aml2.variant=aml2 \
  --set fedham@ftl.variant=ftl --set fedattn@faithful.form=faithful --set panm@grad.metric=grad \
  "${clusters[@]+"${clusters[@]}"}" --target "$target" --link "$link"
for method in fedham fedham@faithful; do
  pfl show "$runs/seed-${seeds[0]}/$method" --plot "$runs/$method.png"
done
# Figure 5: attention early and late, for which FedAvg ends before the first of these rounds.
pfl personalize fedham "${partitions[0]}" "${how[@]}" --set "warmup=$warmup" -o "$runs/figure-5"
pfl show "$runs/figure-5" --plot "$runs/figure-5.png" --plot-rounds "$rounds" --attention "$runs/figure-5.csv"
