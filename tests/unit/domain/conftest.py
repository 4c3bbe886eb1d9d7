import pytest

from tests.support.domain.tasks import TaskWorld


@pytest.fixture
def task_world() -> TaskWorld:
    """One worker, with nothing to do."""
    task_world = TaskWorld()
    task_world.join()
    return task_world


@pytest.fixture
def busy() -> TaskWorld:
    """One worker, at work on a task."""
    task_world = TaskWorld()
    task_world.join()
    task_world.submit()
    task_world.lease()
    return task_world
