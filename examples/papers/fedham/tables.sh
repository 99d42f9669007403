#!/usr/bin/env bash
# FedHAM, Tables 2 to 4 and Figures 4 and 5: every baseline of its paper, the ablations, what is sent, time to a target.
#
#   bash examples/papers/fedham/tables.sh v-mnist --root FOLDER          v-mnist-balanced, air-quality
#
# Both forms of FedHAM, FedAttn and PANM stand beside the baselines. Pictures of the attention come last.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"

name=${1:?which: v-mnist, v-mnist-balanced or air-quality}
runs=$(runs "$name")
case $name-$size in
  v-mnist-small) who=(v-mnist --part 1/4) how=(--model mlp --rounds 30 --batch-size 32 --lr 0.03) ;;
  v-mnist-paper) who=(v-mnist) how=(--model alexnet --rounds 50 --epochs 2 --batch-size 32 --lr 0.01) ;;
  v-mnist-balanced-small) who=(v-mnist --set balanced=true --part 1/4) how=(--model mlp --rounds 30 --batch-size 32 --lr 0.03) ;;
  v-mnist-balanced-paper) who=(v-mnist --set balanced=true) how=(--model alexnet --rounds 50 --epochs 2 --batch-size 32 --lr 0.01) ;;
  air-quality-small) who=(air-quality --set stride=96) how=(--model gru --rounds 12 --batch-size 16 --lr 0.3) ;;
  air-quality-paper) who=(air-quality --set stride=1) how=(--model gru --rounds 50 --epochs 2 --batch-size 32 --lr 0.3) ;;
  *) echo "unknown: $name" >&2; exit 2 ;;
esac
target=0.8
[ "$size" = paper ] || { [ "$name" = air-quality ] && target=0.6 || target=0.45; }
partitions=()
for seed in "${seeds[@]}"; do
  partitions+=("$runs/partition-$seed")
  pfl partition "${who[@]}" "${root[@]}" --seed "$seed" -o "$runs/partition-$seed" -q
done
methods=local,fedsgd,fedavg,fedprox,fedper,fedhealth,fedavg-plus,fedavg-plus@ftl,fedbabu,fedamp,knn-per
methods+=,fedham,fedham@faithful,fedham@aml1,fedham@aml2,fedham@ftl,fedattn,fedattn@faithful,panm,panm@grad
clusters=()
if [ "$name-$size" != air-quality-small ]; then  # nine stations are too few to cluster
  methods+=,fedham@k3,fedham@k5,fedham@k10,fedham@mean-shift
  clusters=(--set fedham@k3.k=3 --set fedham@k5.k=5 --set fedham@k10.k=10 --set fedham@mean-shift.clustering=mean-shift)
fi
pfl compare "${partitions[@]}" -o "$runs" --participation 1 --eval-every 1 "${how[@]}" --methods "$methods" \
  --set fedavg-plus@ftl.upper=1 --set fedham@faithful.form=faithful --set fedham@aml1.variant=aml1 \
  --set fedham@aml2.variant=aml2 --set fedham@ftl.variant=ftl --set fedattn@faithful.form=faithful \
  --set panm@grad.metric=grad "${clusters[@]}" --target "$target"
for method in fedham fedham@faithful; do
  pfl show "$runs/seed-${seeds[0]}/$method" --plot "$runs/$method.png"
done
