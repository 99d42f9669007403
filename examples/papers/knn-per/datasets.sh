# Clients and training by dataset, into `who` and `how`: Table 1 and appendix B of kNN-Per, or a size for two cores.
#
# The paper starts from a MobileNet-v2 with ImageNet's weights, which do not come with pfl: networks start from scratch.

dataset=${1:?which dataset: writers, fashion-mnist, emnist, femnist, cifar10, cifar100 or shakespeare}
alpha=${alpha:-0.3}
# Which part of the images; recipes that need clients with other samples take another, which shares none with it.
parts=1
[ "$size" = paper ] || case $dataset in fashion-mnist) parts=4 ;; emnist) parts=2 ;; esac
[ -z "${apart:-}" ] || parts=$((parts > 1 ? parts : 2))
case $dataset-$size in
  writers-*)
    who=(--scheme natural)
    how=(--rounds 100 --participation 0.2 --batch-size 10 --lr 0.1 --eval-every 10)
    ;;
  fashion-mnist-small | emnist-small)
    who=(--scheme dirichlet --set "alpha=$alpha" --clients 50 --min-samples 10)
    how=(--rounds 50 --participation 0.2 --batch-size 16 --lr 0.1 --eval-every 10)
    ;;
  cifar10-small)
    who=(--scheme dirichlet --set "alpha=$alpha" --clients 50 --min-samples 10)
    how=(--rounds 60 --participation 0.2 --batch-size 16 --lr 0.05 --eval-every 10)
    ;;
  cifar100-small)
    who=(--scheme pachinko --set "alpha=$alpha" --clients 50)
    how=(--rounds 60 --participation 0.2 --batch-size 16 --lr 0.05 --eval-every 10)
    ;;
  shakespeare-small)
    who=(--scheme natural --set min_characters=15000 --set stride=80)
    how=(--model gru --rounds 60 --participation 0.2 --batch-size 16 --lr 1 --eval-every 10)
    ;;
  fashion-mnist-paper | emnist-paper)
    who=(--scheme dirichlet --set "alpha=$alpha" --clients 100 --min-samples 10)
    how=(--rounds 200 --participation 0.1 --batch-size 32 --lr 0.1 --milestones 100,150 --eval-every 10)
    ;;
  cifar10-paper)
    who=(--scheme dirichlet --set "alpha=$alpha" --clients 200 --min-samples 10)
    how=(--model mobilenet-v2 --rounds 200 --participation 1 --batch-size 128 --lr 0.05 --weight-decay 5e-4)
    how+=(--milestones 100,150 --eval-every 10)
    ;;
  cifar100-paper)
    who=(--scheme pachinko --set "alpha=$alpha" --clients 200)
    how=(--model mobilenet-v2 --rounds 200 --participation 1 --batch-size 256 --lr 0.07 --weight-decay 5e-4)
    how+=(--milestones 100,150 --eval-every 10)
    ;;
  femnist-*)
    who=(--scheme natural)
    how=(--model mobilenet-v2 --rounds 1000 --participation 0.05 --batch-size 128 --lr 0.03 --weight-decay 5e-4)
    how+=(--milestones 500,750 --eval-every 50)
    [ "$size" = paper ] || how=(--rounds 100 --participation 0.05 --batch-size 16 --lr 0.1 --eval-every 10)
    ;;
  shakespeare-paper)
    who=(--scheme natural --set stride=1)
    how=(--model lstm --rounds 300 --participation 0.1 --batch-size 128 --lr 1 --milestones 150,225 --eval-every 50)
    ;;
  *) echo "unknown dataset $dataset" >&2; exit 2 ;;
esac
((parts == 1)) || who+=(--part "1/$parts")

# Make the dataset's embeddings in $runs, under the first seed.
embed() {
  pfl partition "$dataset" "${who[@]}" "${root[@]}" --seed "${seeds[0]}" -o "$runs/partition" -q
  pfl train-global "$runs/partition" "${how[@]}" -o "$runs/backbone"
  pfl extract "$runs/backbone" -o "$runs/embeddings" -q
}
