"""Tasks over processes, with one progress count and an orderly stop."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from sortition.core.errors import WorkerError

Tick: TypeAlias = Callable[[], None]
Progress: TypeAlias = Callable[[int], None]
Result = TypeVar("Result")

POLL_SECONDS = 0.1
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_count: Any = None  # in a worker: how many ticks all workers have made
_stop: Any = None  # in a worker: nonzero once the parent wants no more results
_under_way: Any = None  # in a worker: for each task, nonzero while a worker runs it


class StoppedError(Exception):
    """Raised inside a task whose result is no longer wanted."""


def run_tasks(
    tasks: Sequence[Callable[[Tick], Result]],
    jobs: int,
    progress: Progress | None = None,
    names: Sequence[str] | None = None,
) -> list[Result]:
    """Call every task, ``jobs`` at a time, and return the results in the order of the tasks.

    Each task gets a ``tick`` to call as it advances; ``progress`` is called here, in this process, with
    the number of ticks of all tasks so far. With ``jobs=1`` no process is started. Otherwise the workers are
    fresh interpreters ("spawn"), and tasks go to them by cloudpickle, so that functions and classes of a
    notebook or a script arrive, too. On an exception, Ctrl-C included, the tasks that still run stop at
    their next tick; if this process is killed, the workers end.

    ``names`` name the tasks: in a note to the error that a task raises, and in the WorkerError that is raised
    when a worker is killed.

    >>> run_tasks([lambda tick: 1, lambda tick: 2], jobs=1)
    [1, 2]
    """
    report = progress or (lambda ticks: None)
    names = names or [""] * len(tasks)
    if jobs == 1:
        return _run_here(tasks, report, names)
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # a worker that imports a script without a guard: the parent says what to do
    context = multiprocessing.get_context("spawn")
    count, stop = context.Value("q", 0), context.RawValue("b", 0)
    under_way = context.RawArray("b", len(tasks))
    shared = (count, stop, under_way)
    with ProcessPoolExecutor(min(jobs, len(tasks)), context, _attach, shared) as pool:
        try:
            with _spawning():
                futures = [pool.submit(_call, index, _ByValue(task)) for index, task in enumerate(tasks)]
                pool.submit(_nothing)  # the pool watches only the workers it had when it last got work
            pending: set[Future[Result]] = set(futures)
            while pending:
                finished, pending = wait(pending, POLL_SECONDS, return_when=FIRST_EXCEPTION)
                report(count.value)
                for future in finished:
                    with _naming(names[futures.index(future)]):
                        future.result()
        except BrokenProcessPool:
            if not count.value and not any(under_way):
                raise WorkerError(
                    "worker processes ended before they began: in a script, put the call below "
                    'if __name__ == "__main__":, or take jobs=1'
                ) from None
            lost = [name for name, busy in zip(names, under_way, strict=True) if busy and name]
            raise WorkerError(
                "a worker process was killed, perhaps because memory ran out"
                + (f"; it was working on one of: {', '.join(lost)}" if lost else "")
            ) from None
        except BaseException:
            stop.value = 1
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


def _run_here(
    tasks: Sequence[Callable[[Tick], Result]], report: Progress, names: Sequence[str]
) -> list[Result]:
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        report(ticks)

    results = []
    for task, name in zip(tasks, names, strict=True):
        with _naming(name):
            results.append(task(tick))
    return results


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Note on an error which task it came from."""
    try:
        yield
    except Exception as error:
        if name:
            error.add_note(f"in {name}")
        raise


def _attach(count: Any, stop: Any, under_way: Any) -> None:
    """The first call in a worker."""
    global _count, _stop, _under_way
    _count, _stop, _under_way = count, stop, under_way
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End with the parent: a pool's worker does not notice that its parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _nothing() -> None:
    """A task that does nothing."""


class _ByValue:
    """A task or a result that goes by cloudpickle when its turn comes; what arrives is the thing itself."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        return pickle.loads, (cloudpickle.dumps(self._value),)


def _call(index: int, task: Any) -> Any:
    _under_way[index] = 1
    result = task(_tick)
    _under_way[index] = 0
    return _ByValue(result)


def _tick() -> None:
    if _stop.value:
        raise StoppedError
    with _count.get_lock():
        _count.value += 1


@contextmanager
def _spawning() -> Iterator[None]:
    """Processes started within use one thread each and ignore Ctrl-C: the parent tells them when to stop.

    They inherit both. With more threads, two processes on two cores are four times slower, because the
    threads of their linear algebra wait for each other. Only the main thread may ignore a signal; Ctrl-C
    does not reach other threads anyway.
    """
    unset = [name for name in THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, "1"))
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main_thread else None
    try:
        yield
    finally:
        if in_main_thread:
            signal.signal(signal.SIGINT, before)
        for name in unset:
            del os.environ[name]
