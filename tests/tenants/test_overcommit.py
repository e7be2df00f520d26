"""What limits may sum to: a share of the cluster, up to the next whole slot."""

import pytest

from tenants.services.quotas import most_allocatable


@pytest.mark.parametrize(
    ("capacity", "overcommit", "allowed"),
    [
        (0, 1.25, 0),
        (1, 1.25, 2),
        (2, 1.25, 3),
        (8, 1.25, 10),
        (16, 1.25, 20),
        (7, 1.0, 7),
        (10, 1.1, 11),
        (100, 1.15, 115),
    ],
)
def test_a_share_is_rounded_up_and_a_whole_one_is_not(capacity: int, overcommit: float, allowed: int) -> None:
    assert most_allocatable(capacity, overcommit) == allowed
