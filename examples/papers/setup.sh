# What the recipes share. Each is called as
#
#   bash examples/papers/PAPER/RECIPE.sh [ARGUMENTS] [--out DIR] [--root FOLDER] [--seeds 0,1,2] [--paper]
#
# --out is where everything is made (default runs/PAPER/RECIPE), --root the folder with the datasets' files. Without
# --paper a recipe takes part of the data and fewer rounds, so that two cores finish it in minutes. Interrupted, a
# recipe goes on where it stopped when typed again.

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# The environment that examples/quickstart.sh makes, unless pfl is installed already.
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
command -v pfl > /dev/null || { echo "pfl is not installed: bash examples/quickstart.sh" >&2; exit 3; }

# What a recipe prints is its table; the paths of what it makes are in its own lines.
pfl() { command pfl "$@" > /dev/null; }

recipe=$(cd "$(dirname "$0")" && basename "$PWD")/$(basename "$0" .sh)
out=''
root=()
seeds=0,1,2
size=small
arguments=()
while (($#)); do
  case $1 in
    --out | --root | --seeds)
      (($# > 1)) || { echo "$1 needs a value" >&2; exit 2; }
      case $1 in --out) out=$2 ;; --root) root=(--root "$2") ;; --seeds) seeds=$2 ;; esac
      shift
      ;;
    --paper) size=paper ;;
    -*) echo "unknown option $1: --out, --root, --seeds, --paper" >&2; exit 2 ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
set -- "${arguments[@]+"${arguments[@]}"}"
IFS=, read -ra seeds <<< "$seeds"

# In a folder that may be named by hand, or after the recipe and what it was given.
runs() { echo "${out:-runs/$recipe${1:+/$1}}"; }
