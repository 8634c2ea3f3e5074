"""What a database's URL says to us and not to the server."""

import traceback

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


@pytest.mark.parametrize(
    "rest", ["se/cret@db/app", "se#cret@db/app", "se?cret@db:port/app", "secret@db:port/app", "secret@[::1/app"]
)
def test_a_url_that_cannot_be_parsed_is_refused_without_its_password(rest: str) -> None:
    """A generated password often has a slash. The driver's error would show the text before it."""
    with pytest.raises(InvalidInputError, match="not a Postgres URL") as refused:
        split_url(f"postgresql://me:{rest}")
    shown = "".join(traceback.format_exception(refused.value))
    assert "'se" not in shown and "cret" not in str(refused.value)


def test_a_tls_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"sslrootcert /none/ca\.pem"):
        split_url("postgresql://db/app?sslmode=verify-full&sslrootcert=/none/ca.pem")
    assert split_url("postgresql://db/app?sslmode=verify-full&sslrootcert=system")
