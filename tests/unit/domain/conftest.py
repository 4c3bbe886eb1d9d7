import pytest

from tests.support.domain.tasks import Office


@pytest.fixture
def office() -> Office:
    """One worker, with nothing to do."""
    office = Office()
    office.join()
    return office


@pytest.fixture
def busy() -> Office:
    """One worker, at work on a task."""
    office = Office()
    office.join()
    office.submit()
    office.lease()
    return office
