"""A phase that waits, in a thread, for what has not arrived at a site, so that the site trains once in the phase."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

import torch

from pflcli.plugins.sites.places import Pending


class WaitingPhase:
    """Plays a phase in a thread of its own, which runs only while ``advance`` does.

    The thread has the context variables and the intra-op threads of the one that creates it, and random numbers depend
    on no thread, so that the phase has the bytes of one that is played again from its beginning.
    """

    def __init__(self, play: Callable[[], bool]) -> None:
        """Prepare to call ``play``, which returns whether the phase is over; it waits by calling ``wait``."""
        self._play, self._context, self._intra_op = play, contextvars.copy_context(), torch.get_num_threads()
        self._may_run, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._is_abandoned, self._is_over = False, False
        self._error: BaseException | None = None
        # A daemon, as a process that ends must not wait for a delivery.
        self._thread = threading.Thread(target=self._run, name="phase of a site", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._may_run.acquire()
        try:
            if not self._is_abandoned:
                torch.set_num_threads(self._intra_op)  # otherwise OpenMP chooses the number for a new thread
                self._is_over = self._context.run(self._play)
        except BaseException as error:
            self._error = error
        self._has_stopped.release()

    def advance(self) -> bool:
        """Play on until a delivery is missing or the phase is over; returns whether it is, and raises its errors."""
        self._may_run.release()
        try:
            self._has_stopped.acquire()
        except BaseException:  # an interruption: the thread ends when it needs the next delivery
            self._is_abandoned = True
            self._may_run.release()
            raise
        if self._error is not None:
            raise self._error
        return self._is_over

    def wait(self) -> None:
        """Wait, in the thread of the phase, until ``advance`` is called again; raises Pending if it never will be."""
        if not self._is_abandoned:
            self._has_stopped.release()
            self._may_run.acquire()
        if self._is_abandoned:
            raise Pending

    def abandon(self) -> None:
        """End the phase where it waits, which undoes what it has changed; without effect once it is over."""
        self._is_abandoned = True
        self._may_run.release()
        self._thread.join()
