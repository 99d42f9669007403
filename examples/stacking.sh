#!/usr/bin/env bash
# Does one answer from all methods (stack) beat the best single method, and whom does it harm?
#
#   bash examples/stacking.sh SETTING --root FOLDER     fashion-20, fashion-50, fashion-iid, fashion-rotated, emnist, cifar10,
#                                                       mnist-permuted, air-quality; heart and writers (60 of them) need no folder
#   bash examples/stacking.sh SETTING refit ...         beside it the single methods with --refit, which learn from the
#                                                       validation samples instead of choosing by them
#   python examples/stacking.py runs/examples/stacking/*         the table
#
# More options: examples/papers/setup.sh. The seeds are ones that nothing was tuned on.
set -euo pipefail
. "$(dirname "$0")/papers/setup.sh"

((${#arguments[@]})) || arguments=(writers)
setting=${arguments[0]}
runs=$(runs "$setting")
[ "${seeds[*]}" != "0 1 2" ] || seeds=(11 12 13)
how=(--model mlp --rounds 40 --participation 0.4 --batch-size 10 --lr 0.05)
case $setting in
  heart) who=(heart-disease --scheme natural) ;;
  writers) who=(writers --scheme natural) ;;
  fashion-20) who=(fashion-mnist --scheme dirichlet --set alpha=0.1 --clients 20 --min-samples 10 --part 1/10) ;;
  fashion-50) who=(fashion-mnist --scheme dirichlet --set alpha=0.3 --clients 50 --min-samples 10 --part 1/8) ;;
  fashion-iid) who=(fashion-mnist --scheme iid --clients 40 --part 1/10) ;;
  fashion-rotated) who=(fashion-mnist --scheme clusters --set groups=4 --clients 32 --part 1/10) ;;
  emnist) who=(emnist --scheme dirichlet --set alpha=0.3 --clients 50 --min-samples 10 --part 1/3) ;;
  cifar10) who=(cifar10 --scheme dirichlet --set alpha=0.3 --clients 40 --min-samples 10 --part 1/2) ;;
  mnist-permuted) who=(mnist --scheme clusters --set groups=4 --set kind=labels --clients 32 --part 1/10) ;;
  air-quality) who=(air-quality --scheme natural --set stride=48) ;;
  *) echo "unknown setting $setting" >&2; exit 2 ;;
esac
one=fedavg,local,fedavg-plus,fedavg-plus@head,prior,gaussian-head,knn-per
options=(--set fedavg-plus@head.upper=1)
partitions=()
for seed in "${seeds[@]}"; do
  partitions+=("$runs/partition-$seed")
  pfl partition "${who[@]}" "${root[@]+"${root[@]}"}" --seed "$seed" -o "$runs/partition-$seed" -q
done
if [ "${arguments[1]:-}" = refit ]; then
  pfl compare "${partitions[@]}" -o "$runs/refit" "${how[@]}" --methods "$one" "${options[@]}" --refit -q
  exit
fi
plain=fedavg,local,fedavg-plus,fedavg-plus@head,knn-per
stacks=(--set "stack@plain.pool=$plain" --set stack@no-gate.gate=false --set stack@own.own=true --set "stack@all.pool=$one,ditto,fedper")
for name in backbone no-gate own; do
  stacks+=(--set "stack@$name.pool=$one")
done
pfl compare "${partitions[@]}" -o "$runs" "${how[@]}" "${options[@]}" --set ditto.lam=0.1 "${stacks[@]}" -q \
  --methods "$one,ditto,fedper,stack@plain,stack@backbone,stack@no-gate,stack@own,stack@all"
