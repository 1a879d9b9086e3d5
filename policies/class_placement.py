"""A router that keeps replicas for classes of requests, such as completions beside agents."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from policies.routing import LeastOutstanding
from sim.errors import ConfigError, nearest
from sim.policy import ReplicaView, Router
from sim.request import Request


@dataclass
class ClassAware(Router):
    """Requests of a class go to the replicas of that class, and to no others unless it overflows.

    `classes` maps request classes (a column of the trace, or of a preset) to indices of replicas;
    one replica may serve several. Requests of other classes, and of none, go to the replicas in
    `others`, by default those that no class lists. Among the replicas of its class that can run the
    request, `within` chooses; each class has a router of its own for that, all drawing from the one
    generator in the order of requests.

    A class in `overflow` is *preferred* on its replicas, the others are *dedicated*: if each
    replica of the class that can run a request has at least so many requests outstanding, the
    request goes to any of the pool that can run it, chosen by one more router of the same kind. So
    does one that no replica of its class can run, of whatever class: it could never run otherwise.

    Source: the rule is ours.

    Args:
        classes: Request class to indices of replicas, from 0.
        others: Replicas of requests of other classes or of none. Default: those no class lists.
        overflow: Class to the requests outstanding on each of its replicas from which on it
            overflows; absent: never.
        within: Router among the replicas of a class: a name, or a name with options.
    """

    classes: dict[str, list[int]] = field(metadata={"entries": "a list of replica indices"})
    others: list[int] | None = None
    overflow: dict[str, int] = field(default_factory=dict)
    within: Router = field(
        default_factory=LeastOutstanding, metadata={"plugin": "router", "name": "least-outstanding"}
    )
    _routers: dict[str | None, Router] = field(default_factory=dict, init=False, repr=False)
    _anywhere: Router = field(default_factory=LeastOutstanding, init=False, repr=False)
    _sets: dict[str | None, frozenset[int]] = field(default_factory=dict, init=False, repr=False)

    @property
    def sees_contents(self) -> bool:  # type: ignore[override]
        """Whether the router within does."""
        return self.within.sees_contents

    @property
    def sees_state(self) -> bool:  # type: ignore[override]
        """Whether the router within does."""
        return self.within.sees_state

    @property
    def is_static(self) -> bool:  # type: ignore[override]
        """Whether the router within is, and no class overflows by its load."""
        return self.within.is_static and not self.overflow

    def check(self, replicas: int) -> None:
        """Indices are those of replicas that there are, and every request has some."""
        if not self.classes:
            raise ConfigError("classes: is empty; give at least one, such as {chat: [0, 1]}")
        for name, indices in self.classes.items():
            _check_indices(f"classes.{name}", indices, replicas)
        for name, most in self.overflow.items():
            if name not in self.classes:
                raise ConfigError(f"overflow.{name}: no such class{nearest(name, self.classes)}")
            if most < 1:
                raise ConfigError(f"overflow.{name}: {most}: expected at least 1")
        if self.others is not None:
            _check_indices("others", self.others, replicas)
        elif not self._rest(replicas):
            raise ConfigError(
                f"classes: list all {replicas} replicas, so that none is left for requests of "
                "other classes or of none; say which serve these: others"
            )
        self.within.check(replicas)

    def _rest(self, replicas: int) -> frozenset[int]:
        listed = {index for indices in self.classes.values() for index in indices}
        return frozenset(range(replicas)) - listed

    def start(self, rng: np.random.Generator) -> None:
        """A router for each class, one for the others and one for those that overflow."""
        self._sets = {name: frozenset(indices) for name, indices in self.classes.items()}
        if self.others is not None:
            self._sets[None] = frozenset(self.others)
        self._routers = {name: copy.deepcopy(self.within) for name in (*self.classes, None)}
        self._anywhere = copy.deepcopy(self.within)
        for router in (*self._routers.values(), self._anywhere):
            router.start(rng)

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """One of its class, or any of the pool if it overflows."""
        name = request.identity.request_class
        if name not in self.classes:
            name = None
        own = [view for view in replicas if self._is_of(view.index, name)]
        most = None if name is None else self.overflow.get(name)
        full = most is not None and all(view.outstanding >= most for view in own)
        if not own or full:
            return self._anywhere.pick(request, replicas)
        return self._routers[name].pick(request, own)

    def _is_of(self, index: int, name: str | None) -> bool:
        """Whether a replica serves a class; None: the requests of no class listed."""
        if name in self._sets:
            return index in self._sets[name]
        return not any(index in indices for indices in self._sets.values())


def _check_indices(key: str, indices: Sequence[int], replicas: int) -> None:
    if not indices:
        raise ConfigError(f"{key}: is empty; give indices of replicas, 0 to {replicas - 1}")
    for index in indices:
        if not 0 <= index < replicas:
            raise ConfigError(
                f"{key}: {index}: there is no such replica; choose from 0 to {replicas - 1}"
            )
    if len(set(indices)) < len(indices):
        raise ConfigError(f"{key}: {list(indices)}: names a replica twice")
