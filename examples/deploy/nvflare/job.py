"""Run the relay with sites in processes of this machine, with certificates made for the occasion.

python job.py SITE [SITE ...]
"""

from __future__ import annotations

import sys

import relay
from nvflare.collab import CollabRecipe
from nvflare.recipe import PocEnv

recipe = CollabRecipe(
    job_name="pfl_relay", server=relay, client=relay, min_clients=len(sys.argv) - 1, sync_task_timeout=120
)
environment = PocEnv(num_clients=len(sys.argv) - 1, clients=sys.argv[1:])
try:
    run = recipe.execute(environment)
    run.get_result(timeout=3600)
    status = run.get_status()
finally:
    environment.stop(clean_up=False)
print(status)
sys.exit(status != "FINISHED:COMPLETED")
