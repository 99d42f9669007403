import sys; sys.path.insert(0,"/work/wt/places/tests/plugins/sites")
import pytest
from test_deployed_runs import compare
from worlds_of_sites import GROUPS, make_world
N=["clustered-fl", "fedamp", "fedattn", "fedham", "fedproto", "gossip", "ifca", "panm","fedattn-extended"]
@pytest.mark.parametrize("name", N)
@pytest.mark.parametrize("groups", ["1 client a site", "2 or 3 clients a site"])
def test_x(name, groups, tmp_path):
    compare(make_world(name, tmp_path, GROUPS[groups], rounds=4))
