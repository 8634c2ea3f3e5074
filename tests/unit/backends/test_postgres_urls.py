"""What a database's URL says to us and not to the server."""

import pytest

from runyard.errors import InvalidInputError
from runyard_backends.postgres.connecting import split_url

PLAIN = "postgresql://me:p%40ss@db:6432/app?sslmode=require&application_name=a%20b"


def test_other_parameters_are_the_drivers() -> None:
    assert split_url(PLAIN) == (PLAIN, {})
    assert split_url("postgresql://db/app?statement_cache_size=0") == ("postgresql://db/app", {"statement_cache_size": 0})
    url, settings = split_url(f"{PLAIN}&statement_cache_size=0")
    assert (url.replace("+", "%20"), settings) == (PLAIN, {"statement_cache_size": 0})


@pytest.mark.parametrize("value", ["", "none", "-1"])
def test_a_size_that_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(InvalidInputError):
        split_url(f"postgresql://db/app?statement_cache_size={value}")
