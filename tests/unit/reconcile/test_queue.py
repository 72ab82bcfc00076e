from __future__ import annotations

from netreeve.reconcile.queue import Queue


def drain(queue: Queue[str], now: float) -> list[str]:
    taken = []
    while (item := queue.take(now)) is not None:
        taken.append(item)
    return taken


def test_first_come_first_served_and_each_once() -> None:
    queue: Queue[str] = Queue()
    for item in "abca":
        queue.add(item)
    assert len(queue) == 3
    assert drain(queue, 0) == ["a", "b", "c"]
    assert len(queue) == 0


def test_those_that_wait_come_when_their_time_has_come() -> None:
    queue: Queue[str] = Queue()
    queue.later("late", 20)
    queue.later("soon", 10)
    assert queue.deadline() == 10
    assert drain(queue, 9.99) == []
    assert drain(queue, 10) == ["soon"]
    assert queue.deadline() == 20
    assert drain(queue, 30) == ["late"]
    assert queue.deadline() is None


def test_the_last_word_counts() -> None:
    queue: Queue[str] = Queue()
    queue.later("a", 10)
    queue.add("a")
    assert drain(queue, 0) == ["a"]
    assert queue.deadline() is None
    queue.add("b")
    queue.later("b", 30)
    queue.later("b", 20)
    assert "b" in queue
    assert drain(queue, 19) == []
    assert drain(queue, 20) == ["b"]
    queue.later("c", 1)
    queue.add("d")
    queue.discard("c")
    queue.discard("d")
    assert drain(queue, 99) == []


def test_putting_off_again_and_again_holds_no_memory() -> None:
    queue: Queue[str] = Queue()
    for n in range(10_000):
        queue.later("a", n)
    assert len(queue._heap) < 100
    assert queue.deadline() == 9_999
