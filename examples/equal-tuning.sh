#!/usr/bin/env bash
# How does the order of methods change if each is tuned with the same budget of trials?
#
#   bash examples/equal-tuning.sh SETTING --root FOLDER     fashion, cifar10, mnist-permuted, air-quality; heart and writers need
#                                                           no folder
#   python examples/equal_tuning.py runs/examples/equal-tuning/*         the table
#
# More options: examples/papers/setup.sh. One seed, small parts of the data, and few rounds.
set -euo pipefail
. "$(dirname "$0")/papers/setup.sh"

((${#arguments[@]})) || arguments=(writers)
setting=${arguments[0]}
runs=$(runs "$setting")
how=(--model mlp --rounds 15 --participation 0.4 --batch-size 10 --eval-every 15 --threads 1)
methods=fedavg,local,fedavg-plus,knn-per,ditto,apfl,fedrep,fedala
case $setting in
  heart) who=(heart-disease --scheme natural) root=() ;;
  writers) who=(writers --scheme natural --clients 30) root=() ;;
  fashion) who=(fashion-mnist --scheme dirichlet --set alpha=0.3 --clients 20 --min-samples 10 --part 1/20) ;;
  cifar10) who=(cifar10 --scheme dirichlet --set alpha=0.3 --clients 10 --min-samples 10 --part 1/6) ;;
  mnist-permuted) who=(mnist --scheme clusters --set groups=4 --set kind=labels --clients 20 --part 1/15) ;;
  air-quality) who=(air-quality --scheme natural --set stride=240) ;;
  *) echo "unknown setting $setting" >&2; exit 2 ;;
esac
pfl partition "${who[@]}" "${root[@]+"${root[@]}"}" --seed "${seeds[0]}" -o "$runs/partition" -q
pfl compare "$runs/partition" -o "$runs/defaults" "${how[@]}" --methods "$methods" -q
pfl compare "$runs/partition" -o "$runs/tuned" "${how[@]}" --methods "$methods" --tune 8 -q
