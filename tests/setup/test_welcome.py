"""What the start of a platform prints last."""

from portal import demo
from portal.supervisor.welcome import welcome


def test_each_password_is_a_word_of_its_own() -> None:
    passwords = demo.Passwords()
    users = {
        person.name: {"password": passwords.of(person.name)[0], "role": "researcher", "tenant": person.tenant}
        for person in demo.PEOPLE
    }
    printed = [line.split() for line in welcome("http://127.0.0.1:8000", {"users": users}).splitlines()]
    for name, user in users.items():
        assert [name, user["password"], "researcher"] in [words[:3] for words in printed]
