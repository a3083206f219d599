"""A thread inside a role of its process's seat: who is inside keeps the role from changing.

Invariants:
- Whatever a signal interrupts, nobody stays inside who has left.
"""

import weakref
from collections.abc import Callable

from foldlog.holder import Holder
from foldlog.runtime import Lock, let_go


class Inside:
    """A thread inside a role: entered and left in a ``with``.

    A signal's handler may raise between any two steps of the main thread. Entering leaves nothing
    behind then, and what leaving left behind is a weak reference, dead once this object has gone:
    a finalizer would swallow the interrupt that came while it ran.
    """

    def __init__(
        self,
        changing: Lock,
        inside: "set[weakref.ref[Inside]]",
        holder: Callable[[], Holder | None],
    ) -> None:
        self._changing, self._inside, self._holder = changing, inside, holder
        self._self = weakref.ref(self)

    def __enter__(self) -> Holder | None:
        try:
            try:
                self._changing.acquire()
                self._inside.add(self._self)
            finally:
                let_go(self._changing)
            return self._holder()
        except BaseException:
            self._inside.discard(self._self)
            raise

    def __exit__(self, *error: object) -> None:
        self._inside.discard(self._self)
