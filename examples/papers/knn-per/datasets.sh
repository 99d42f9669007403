# Clients and training of a dataset, into `dataset`, `who` and `how`.

experiment=${1:?which dataset: writers, fashion-mnist, emnist, femnist, cifar10, cifar10-v2, cifar100, cifar100-v2 or shakespeare}
setting dataset "$experiment" dataset
setting who "$experiment" partition
setting how "$experiment" training

# Take clients drawn by another alpha; a dataset whose clients are not drawn so is refused.
drawn_by() {
  case " ${who[*]} " in
    *" alpha="*) ;;
    *) echo "$experiment: its clients are not drawn by alpha; cifar10, cifar100, fashion-mnist and emnist have such" >&2; exit 2 ;;
  esac
  setting who "$experiment" partition "set.alpha=$1"
}

# Make the dataset's embeddings in $runs, under the first seed.
embed() {
  pfl partition "$dataset" "${who[@]}" "${root[@]+"${root[@]}"}" --seed "${seeds[0]}" -o "$runs/partition" -q
  pfl train-global "$runs/partition" "${how[@]}" "${weights[@]+"${weights[@]}"}" -o "$runs/backbone"
  pfl extract "$runs/backbone" -o "$runs/embeddings" -q
}
