from gpusnap.events import Event, Frozen, Thawed
from gpusnap.phases import Phases


def test_two_stops_without_a_run_are_one() -> None:
    events: list[Event] = []
    phases = Phases(events.append)
    phases.freeze((7,))
    first = phases._frozen_at
    phases.freeze((7,))
    assert phases._frozen_at == first
    phases.thaw((7,))
    phases.thaw((7,))
    frozen, thawed = events
    assert frozen == Frozen(pids=(7,))
    assert thawed == Thawed(pids=(7,), microseconds=phases.frozen_so_far())
