# What four_hospitals.sh and study.sh share: sourced by them, with the folder of artifacts in $runs.
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
command -v pfl > /dev/null || PATH="$home/.venv/bin:$PATH"
command -v pfl > /dev/null || { echo "pfl is not installed: bash examples/quickstart.sh" >&2; exit 3; }
python=$(dirname "$(command -v pfl)")/python
[ -x "$python" ] || python=python3
hospitals="cleveland hungary long-beach switzerland"
export OMP_NUM_THREADS=1

# at_each COMMAND: run it for every hospital at the same time, and fail if it fails at one.
at_each() {
  local hospital process started=""
  for hospital in $hospitals; do
    "$@" "$hospital" &
    started="$started $!"
  done
  for process in $started; do wait "$process"; done
}

# options HOSPITAL: print what its table needs beside --like; it is in a file beside the table.
options() { cat "$runs/tables/$1.options" 2> /dev/null || true; }

# join FED HOSPITAL: the hospital imports its own table, splits it, and sees what will leave it.
join() { pfl site join "$1" --data "$runs/tables/$2.csv" $(options "$2") -o "$runs/$2/site" -q > /dev/null; }

# serve HOSPITAL: the hospital answers messages until the last one.
serve() { pfl site serve "$runs/$1/site" --at "$runs/exchange" --threads 1 -q > /dev/null; }

# play FED OUT: all hospitals join, and play all rounds with the server, in five processes.
play() {
  at_each join "$1"
  at_each serve &
  local sites=$!
  pfl federation run "$1" --at "$runs/exchange" -o "$2" --threads 1
  wait $sites
}
