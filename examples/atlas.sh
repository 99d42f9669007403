#!/usr/bin/env bash
# Which method where? Fifteen methods on eleven federations, each tuned and trained with three seeds: docs/atlas.md.
#
#   bash examples/atlas.sh --root FOLDER --weights FILE             all federations, one after the other
#   bash examples/atlas.sh NAME... --root FOLDER                    some; two side by side take two cores
#   bash examples/atlas.sh estimate [NAME...] --root FOLDER         only what each takes at most, by method
#
# Type it in the folder of the repository. docs/results/atlas.toml has the federations, the methods and the options;
# --settings FILE is another such table, beside which scores are then stored.
# --weights, for cifar10, is a state dict of torchvision's mobilenet_v2. More options: examples/papers/setup.sh.
#
# Each federation has one partition, drawn with the first seed. On its validation samples each method is tuned by
# eight trials with the first seed, of which two run to the end; then it is trained with every seed. An interrupted
# federation goes on where it stopped when typed again. At its end its table and its scores are stored beside
# docs/results/atlas.toml, unless a method's training is not finished. python docs/reference.py then writes the pages.
set -euo pipefail
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
given=("$@") task=run
if [ "${1:-}" = estimate ]; then task=estimate && shift; fi
. "$(dirname "$0")/papers/setup.sh"

[ "$settings" != "$home/examples/papers/settings.toml" ] || settings=$home/docs/results/atlas.toml
atlas() { "$python" "$home/examples/atlas.py" "$settings" "$@"; }
if ((${#arguments[@]} != 1)); then
  [ "$task" = run ] || given=("${given[@]:1}")
  options=() failed=()
  for word in "${given[@]+"${given[@]}"}"; do
    case " ${arguments[*]+"${arguments[*]}"} " in *" $word "*) ;; *) options+=("$word") ;; esac
  done
  read -ra names <<< "${arguments[*]+"${arguments[*]}"}"
  ((${#names[@]})) || read -ra names <<< "$(atlas names)"
  for_each() {
    for name in "${names[@]}"; do  # 130: Ctrl-C ended it
      bash "$0" "$@" "$name" "${options[@]+"${options[@]}"}" || { (($? != 130)) && failed+=("$name") || exit 130; }
    done
  }
  for_each estimate
  [ "$task" = run ] && ((${#failed[@]} == 0)) || exit $((${#failed[@]} > 0))
  for_each
  ((${#failed[@]} == 0)) || { echo "not finished: ${failed[*]}" >&2; exit 1; }
  exit
fi

name=${arguments[0]}
packaged=$(atlas packaged "$name")
at=$(runs '')/$name
read -ra who <<< "$(atlas partition "$name" "$at/data")"
read -ra how <<< "$(atlas compare "$name")"
read -ra encoder <<< "$(atlas embed "$name")"
[ "$packaged" = no ] || root=()
if ((${#encoder[@]})); then
  pfl embed "${encoder[@]}" "${root[@]+"${root[@]}"}" "${weights[@]+"${weights[@]}"}" -o "$at/data" -q
  root=()
fi
pfl partition "${who[@]}" "${root[@]+"${root[@]}"}" --seed "${seeds[0]}" -o "$at/partition" -q
if [ "${how[*]}" != "$(cat "$at/estimate.words" 2> /dev/null)" ]; then
  command pfl compare "$at/partition" -o "$at/estimate" "${how[@]}" --threads 1 -n --json > "$at/estimate.part" 2> "$at/estimate.log" ||
    { status=$?; tail -n 3 "$at/estimate.log" >&2; exit $status; }
  mv "$at/estimate.part" "$at/estimate.json"
  echo "${how[*]}" > "$at/estimate.words"
fi
atlas estimate "$name" "$at/estimate.json" "${#seeds[@]}"
[ "$task" = run ] || exit 0
pfl compare "$at/partition" -o "$at" "${how[@]}" --threads 1 --tune "$(atlas trials "$name")" --seeds "$(IFS=,; echo "${seeds[*]}")" -q
atlas store "$name" "$at/comparison"
