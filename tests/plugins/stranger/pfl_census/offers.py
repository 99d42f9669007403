"""Training by the reference, under another name."""

from pflcli.core.engine.networks import AutogradNetwork
from pflcli.core.engine.strategy import Strategy


def train(request):
    """Return autograd, whatever is asked."""
    return Strategy("the census", "it takes everything", lambda names: AutogradNetwork(request.worker.net, names))


TRAINING = (train,)
