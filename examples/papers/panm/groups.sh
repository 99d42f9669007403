# Clients in groups, into `partitions`: `partition`, with the arguments DATASET KIND GROUPS [CLIENTS].

dataset=${1:-mnist} kind=${2:-rotation} groups=${3:-4} clients=${4:-}
changes=("set.kind=$kind" "set.groups=$groups")
if [ -n "$clients" ]; then
  changes+=("clients=$clients")
  # At the small size a client has 160 samples of MNIST, however many clients there are.
  [ "$size" = paper ] || changes+=("part=1/$((clients < 320 ? 320 / clients : 1))")
fi
setting who clusters partition "${changes[@]}"
setting how clusters training

partition() {
  partitions=()
  for seed in "${seeds[@]}"; do
    partitions+=("$runs/partition-$seed")
    pfl partition "$dataset" "${who[@]}" "${root[@]+"${root[@]}"}" --seed "$seed" -o "$runs/partition-$seed" -q
  done
}
