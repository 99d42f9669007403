#!/usr/bin/env bash
# What do defences cost in accuracy, and how far do they lower what `pfl audit` infers? The table of docs/privacy.md.
#
#   bash examples/defences.sh SETTING [--out DIR] [--root FOLDER]     writers, fashion-mnist (which needs the folder) or heart-disease
#   python examples/defences.py runs/examples/defences/*              one table of all that were made
#
# More options: examples/papers/setup.sh.
set -euo pipefail
. "$(dirname "$0")/papers/setup.sh"

((${#arguments[@]})) || arguments=(writers)
setting=${arguments[0]}
runs=$(runs "$setting")
how=(--model mlp --rounds 30 --participation 1 --batch-size 10 --lr 0.05)
case $setting in
  writers) who=(writers --clients 30) ;;
  fashion-mnist) who=(fashion-mnist --scheme dirichlet --set alpha=0.1 --clients 10 --min-samples 10 --part 1/30) ;;
  heart-disease)
    who=(heart-disease --scheme natural)
    how=(--model logistic --rounds 15 --participation 1 --steps 100 --batch-size 4 --lr 0.0005)
    ;;
  *) echo "unknown setting $setting" >&2; exit 2 ;;
esac

# What clients answer: `answers NAME PREDICTIONS [FORM]` audits the predictions by what leaves, and scores them.
answers() { pfl audit "$2" -o "$runs/audit/$1" ${3:+--answers "$3"} -q; }

pfl partition "${who[@]}" "${root[@]+"${root[@]}"}" -o "$runs/p" -q

# FedHAM, section 7: rounding, the class alone, noise on uploads, and the mean and the vote of an ensemble. Local models
# are what all personal models come near to.
pfl personalize local "$runs/p" -o "$runs/local" "${how[@]}" -q
pfl personalize fedham "$runs/p" -o "$runs/fedham" "${how[@]}" -q
for method in local fedham; do
  for form in full rounded:1 label; do
    answers "$method $form" "$runs/$method" "$form"
  done
done
for deviation in 0.01 0.1; do
  pfl personalize fedham "$runs/p" -o "$runs/fedham-$deviation" "${how[@]}" --upload clip:1 --upload "noise:$deviation" -q
  answers "fedham noise:$deviation" "$runs/fedham-$deviation" full
done

pfl train-global "$runs/p" -o "$runs/b" "${how[@]}" -q
for ensemble in "1 mean" "5 mean" "5 votes"; do
  read -r models pool <<< "$ensemble"
  pfl personalize fedavg-plus "$runs/b" -o "$runs/plus-$models-$pool" --set models="$models" --set pool="$pool" --set epochs=20 -q
  answers "plus $ensemble full" "$runs/plus-$models-$pool" full
done
answers "plus 5 votes label" "$runs/plus-5-votes" label

# Stores of kNN-Per, with votes alone (lambda 1) and with lambda that clients choose.
pfl extract "$runs/b" -o "$runs/e" -q
pfl build-datastore "$runs/e" -o "$runs/d" -q
pfl build-datastore "$runs/e" -o "$runs/d-prototypes" --prototypes 0.25 -q
for weight in 1 none; do
  store() { # store NAME DATASTORE FORM OPTION...
    pfl personalize knn-per-extended "$2" -o "$runs/knn-$weight-$1" --set weight="$weight" "${@:4}" -q
    answers "knn-$weight $1 $3" "$runs/knn-$weight-$1" "$3"
  }
  store distance "$runs/d" full --set k=5
  answers "knn-$weight distance rounded:1" "$runs/knn-$weight-distance" rounded:1
  answers "knn-$weight distance label" "$runs/knn-$weight-distance" label
  store count "$runs/d" full --set k=5 --set vote=count
  store label "$runs/d" label --set k=5 --set vote=label
  for epsilon in 0.5 2; do
    store "noisy-$epsilon" "$runs/d" label --set k=5 --set vote=noisy --set vote_epsilon=$epsilon
  done
  store prototypes "$runs/d-prototypes" full --set k=5
done
# A kernel so sharp that a stored sample has nearly all votes for itself.
pfl personalize knn-per "$runs/d" -o "$runs/knn-1-sharp" --set weight=1 --set k=5 --set sigma=0.1 -q
for form in full rounded:1 label; do
  answers "knn-1 sharp $form" "$runs/knn-1-sharp" "$form"
done
"$python" "$home/examples/defences.py" "$runs"
