# What the recipes share. Each is called as
#
#   bash examples/papers/PAPER/RECIPE.sh [ARGUMENTS] [--out DIR] [--root FOLDER] [--download] [--weights FILE]
#                                        [--seeds 0,1,2] [--paper] [--settings FILE] [--tune N]
#
# --out is where everything is made (default runs/PAPER/RECIPE), --root the folder with the datasets' files, into which
# --download fetches them. --weights are those that all models start from, such as ImageNet's. What is run stands in
# settings.toml, or in --settings: with --paper the paper's own settings, else a part of the data and fewer rounds, which
# two cores finish in minutes. Interrupted, a recipe goes on where it stopped when typed again. With --tune, tables of
# rivals tune each method by N trials on the validation samples of one partition, which all seeds then share.

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# The environment that examples/quickstart.sh makes, unless pfl is installed already.
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
command -v pfl > /dev/null || { echo "pfl is not installed: bash examples/quickstart.sh" >&2; exit 3; }
pfl=$(command -v pfl)
while [ -L "$pfl" ]; do  # pfl may be a link to the program, beside which its Python is
  link=$(readlink "$pfl")
  case $link in /*) pfl=$link ;; *) pfl=$(dirname "$pfl")/$link ;; esac
done
python=$(dirname "$pfl")/python
[ -x "$python" ] || python=python3

# What a recipe prints is its table; the paths of what it makes are in its own lines.
pfl() { command pfl "$@" > /dev/null; }

paper=$(cd "$(dirname "$0")" && basename "$PWD")
recipe=$paper/$(basename "$0" .sh)
out=''
root=()
weights=()
seeds=0,1,2
tuning=()
size=small
settings=$home/examples/papers/settings.toml
arguments=()
while (($#)); do
  case $1 in
    --out | --root | --weights | --seeds | --settings | --tune)
      (($# > 1)) || { echo "$1 needs a value" >&2; exit 2; }
      case $1 in
        --out) out=$2 ;;
        --root) root+=(--root "$2") ;;
        --weights) weights=(--weights "$2") ;;
        --seeds) seeds=$2 ;;
        --settings) settings=$2 ;;
        --tune) tuning=(--tune "$2") ;;
      esac
      shift
      ;;
    --download) root+=(--download) ;;
    --paper) size=paper ;;
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
    -*)
      echo "unknown option $1: --out, --root, --download, --weights, --seeds, --paper, --settings, --tune" >&2
      exit 2
      ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
set -- "${arguments[@]+"${arguments[@]}"}"
((${#tuning[@]} == 0)) || tuning+=(--seeds "$seeds")
IFS=, read -ra seeds <<< "$seeds"
# The seeds that draw partitions. What chose options on one partition may be a test sample of another.
draws=("${seeds[@]}")
if ((${#tuning[@]})); then
  draws=("${seeds[0]}")
  case $(basename "$0") in
    tables.sh | all-methods.sh) ;;
    *) echo "$(basename "$0") has no --tune: it compares no rivals" >&2; exit 2 ;;
  esac
fi

# In a folder that may be named by hand, or after the recipe and what it was given.
runs() { echo "${out:-runs/$recipe${1:+/$1}}"; }

# Read a key of this paper's experiment into an array: `setting ARRAY EXPERIMENT KEY [OPTION=VALUE...]`.
setting() {
  local words
  words=$("$python" "$home/examples/papers/settings.py" "$settings" "$size" "$paper.$2" "${@:3}") || exit 2
  ((${#tuning[@]} == 0)) || words=$(sed 's/--lr [^ ]*//' <<< "$words")  # it is what is tuned
  read -ra "${1?}" <<< "$words"
}
