#!/usr/bin/env bash
# Every method on one dataset, three seeds, in one table.
#
#   bash examples/all-methods.sh writers
#   bash examples/all-methods.sh fashion-mnist --root FOLDER      20 clients, Dirichlet 0.1
#   bash examples/all-methods.sh air-quality-pm25 6 --root FOLDER  9 stations, PM2.5 in 6 hours, from the last 6; or 1 or 24
#   bash examples/all-methods.sh writers longer                   FedSGD and SCAFFOLD with settings of their own
#   bash examples/all-methods.sh writers later                    rivals of kNN-Per, with gains over it, on the models
#                                                                 that FedAvg and FedAdam have trained
#   bash examples/all-methods.sh writers --tune 8 --out DIR       each method tuned by eight trials
#
# On the part of Fashion-MNIST that two cores train to the end in an hour, methods of the papers and their main rivals;
# FedHAM alone would take as long. With --paper, all. More options: examples/papers/setup.sh.
set -euo pipefail
. "$(dirname "$0")/papers/setup.sh"

dataset=${1:-writers}
runs=$(runs "$dataset${2:+$([ "$dataset" = air-quality-pm25 ] && echo "/$2")}")
compared=all,fedattn@faithful,fedham@faithful
labelled=(--set fedattn@faithful.form=faithful --set fedham@faithful.form=faithful)
who=(--scheme natural)
how=(--model mlp --rounds 600 --participation 0.4 --batch-size 10) rate=0.1
# FedSGD needs more rounds, and so do three peer methods; SCAFFOLD diverges at this rate.
apart=(--set fedsgd.training.rounds=2400)
((${#tuning[@]})) || apart+=(--set scaffold.training.lr=0.05)
measured=(--eval-every 10 --personal-every 50)
peers=()
for method in gossip fedamp pens; do peers+=(--set "$method.training.rounds=1200"); done
if [ "$dataset" = air-quality-pm25 ]; then
  # Samples are split by time, so that no seed draws another partition. The rate is that of FedAvg with the lowest
  # validation error among 0.01, 0.03, 0.1 and 0.3.
  draws=("${seeds[0]}") how=(--model mlp --rounds 100 --participation 1 --batch-size 128) rate=0.03
  ((${#tuning[@]})) || how+=(--seeds "$(IFS=,; echo "${seeds[*]}")")
  who+=(--set "horizon=${2:-6}" --set hours=6 --set stride=24)
  compared=all
  [ "$size" = paper ] || compared=fedavg,fedavg-plus,ditto,apfl,fedrep,fedper,fedprox,knn-per,gaussian-head,knn-peers,alone
  compared+=,alone@ridge,alone@boosting
  labelled=(--set alone@ridge.model=linear --set alone@boosting.model=boosting)
  apart=() peers=() measured=(--eval-every 2 --personal-every 2)
elif [ "$dataset" != writers ]; then
  apart=() peers=()
  who=(--scheme dirichlet --set alpha=0.1 --clients 20 --min-samples 10)
  how=(--model cnn --rounds 2000 --participation 1 --batch-size 10) rate=0.005
  if [ "$size" = small ]; then
    who+=(--part 1/10)
    how=(--model mlp --rounds 300 --participation 1 --batch-size 10) rate=0.2
    apart=(--set pooled.training.lr=0.05)  # diverges at this rate
    compared=fedavg,fedavg-plus,knn-per,knn-per-plus,knn-peers,gaussian-head,prior,fedattn,panm
    compared+=,ditto,apfl,fedrep,fedper,fedprox,lg-fedavg labelled=()
  fi
fi
# To the end: at most these rounds, of which the best by validation is reported.
how+=(--patience flat --report best "${measured[@]}")
((${#tuning[@]})) || how+=(--lr "$rate")  # unless it is tuned
partitions=()
for seed in "${draws[@]}"; do
  partitions+=("$runs/partition-$seed")
  pfl partition "$dataset" "${who[@]}" "${root[@]+"${root[@]}"}" --seed "$seed" -o "$runs/partition-$seed" -q
done
if [ "${2:-}" = later ]; then
  rivals=fedavg,fedavg-plus,knn-per,knn-per-extended@distance,knn-per-plus,gaussian-head,prior
  how+=("${tuning[@]+"${tuning[@]}"}" --set knn-per-extended@distance.decay=auto --baseline knn-per)
  pfl compare "${partitions[@]}" -o "$runs/later" "${how[@]}" --methods "$rivals,pfedfda"
  pfl compare "${partitions[@]}" -o "$runs/fedadam" "${how[@]}" --methods "$rivals" --set fedavg.server=adam
  exit
fi
if [ "${2:-}" = longer ]; then
  runs+=/longer compared=fedavg,fedsgd,scaffold labelled=(--no-references) peers=()
fi
pfl compare "${partitions[@]}" -o "$runs" "${how[@]}" "${tuning[@]+"${tuning[@]}"}" "${apart[@]+"${apart[@]}"}" \
  "${peers[@]+"${peers[@]}"}" "${labelled[@]+"${labelled[@]}"}" --methods "$compared"
