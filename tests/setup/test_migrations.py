"""The tables are what the models say."""

import pytest
from django.core.management import call_command
from django.db import connection


@pytest.mark.django_db
def test_no_model_waits_for_a_migration() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db(transaction=True)
def test_a_migration_may_take_long_and_leaves_its_session_as_it_was() -> None:
    def timeout() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            return str(cursor.fetchone()[0])

    before = timeout()
    assert before != "0"
    with connection.schema_editor():
        assert timeout() == "0"
    assert timeout() == before
