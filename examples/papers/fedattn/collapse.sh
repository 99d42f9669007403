#!/usr/bin/env bash
# FedAttn, Table 1 and Figures 3 to 5: the form as printed collapses, the default does not; controls beside it.
#
#   bash examples/papers/fedattn/collapse.sh writers [--root FOLDER]       emnist, femnist
#
# faithful: as printed. mu: with pulls towards global and neighbouring biases. stages: FedAvg first. These are the
# report's remedies. Controls: no attention (FedAvg), private biases (k = 1), random neighbours, weights not trained.
set -euo pipefail
. "$(dirname "$0")/../setup.sh"

dataset=${1:-writers}
runs=$(runs "$dataset")
case $dataset in
  writers) who=(--scheme natural) ;;
  emnist) who=(--scheme dirichlet --set alpha=0.3 --clients 50 --part 1/2) ;;
  *) who=(--scheme natural) ;;
esac
how=(--model mlp --rounds 300 --participation 0.2 --batch-size 10 --lr 0.05 --eval-every 10)
[ "$size" = small ] || how=(--model cnn --rounds 1500 --participation 0.003 --epochs 5 --batch-size 10 --lr 0.05 --eval-every 10)
partitions=()
for seed in "${seeds[@]}"; do
  partitions+=("$runs/partition-$seed")
  pfl partition "$dataset" "${who[@]}" "${root[@]}" --seed "$seed" -o "$runs/partition-$seed" -q
done
methods=fedavg,fedattn,fedattn@none,fedattn@k1,fedattn@random,fedattn@frozen
methods+=,fedattn@faithful,fedattn@mu,fedattn@stages
pfl compare "${partitions[@]}" -o "$runs" "${how[@]}" --methods "$methods" \
  --set fedattn@none.attention=none --set fedattn@k1.k=1 --set fedattn@random.neighbours=random \
  --set fedattn@frozen.attention=frozen --set fedattn@faithful.form=faithful --set fedattn@faithful.server_lr=0.003 \
  --set fedattn@mu.form=faithful --set fedattn@mu.server_lr=0.003 --set fedattn@mu.mu_g=0.1 --set fedattn@mu.mu_n=0.1 \
  --set fedattn@stages.form=faithful --set fedattn@stages.server_lr=0.003 --set fedattn@stages.warmup=150
for method in fedattn fedattn@faithful fedattn@mu fedattn@stages; do
  pfl show "$runs/seed-${seeds[0]}/$method" --plot "$runs/$method.png"
done
