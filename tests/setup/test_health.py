"""The two questions a supervisor asks."""

from django.test import Client


def test_alive_answers_without_looking_at_anything(client: Client) -> None:
    answer = client.get("/healthz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "alive"}
