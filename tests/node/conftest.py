"""What the tests of a shard share."""

import pytest
from fakes.shards import SONGS, lasting, make_run, run, settings


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """Lasting columns of SONGS when nothing goes wrong, made on two ranks by the fake engine."""
    run_dir = tmp_path_factory.mktemp("undisturbed")
    paths = make_run(run_dir, SONGS, settings(ranks=2))
    assert run(run_dir)[0] == 0
    return lasting(paths)
