"""The ClickHouse users of docs/clickhouse-users.md, from the page's own SQL.

libchdb has no storage that `CREATE USER` could write to, so the users become a file for users.d: a
GRANT stands there as it is, without the name behind TO. The access checks are ClickHouse's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from . import clickhouse
from .services import REPOSITORY, EmbeddedClickHouse

PAGE = REPOSITORY / "docs" / "clickhouse-users.md"
ADMINISTRATOR = {"user": "administrator", "password": "administrator-password"}

_USER = re.compile(r"CREATE USER (\w+) IDENTIFIED .* SETTINGS PROFILE (\w+)")
_GRANT = re.compile(r"(GRANT .+) TO (\w+)")
_PROFILE = re.compile(r"CREATE SETTINGS PROFILE (\w+) SETTINGS (.+)")
_QUOTA = re.compile(r"CREATE QUOTA (\w+) FOR INTERVAL 1 hour MAX (\w+) = (\d+) TO (\w+)")


def statements() -> list[str]:
    """Every statement of the page, without its comment lines and semicolon."""
    blocks = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    text = re.sub(r"^--.*\n", "", "".join(blocks), flags=re.MULTILINE)
    return [" ".join(one.split()) for one in text.split(";") if one.strip()]


@dataclass
class User:
    profile: str
    grants: list[str] = field(default_factory=list)
    quota: str = "default"


@dataclass
class Access:
    """Users, profiles and quotas, as a file of users.d has them."""

    users: dict[str, User] = field(default_factory=dict)
    profiles: dict[str, dict[str, str]] = field(default_factory=dict)
    quotas: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, name: str, like: str, *grants: str, profile: str | None = None) -> None:
        """Adds a user with the rights of another and these statements."""
        model = self.users[like]
        self.users[name] = User(profile or model.profile, [*model.grants, *grants])

    def sections(self) -> dict[str, str]:
        """The content of `users`, `profiles` and `quotas`."""
        return {
            "users": "".join(_user(name, user) for name, user in self.users.items()),
            "profiles": "".join(
                _element(name, _settings(settings)) for name, settings in self.profiles.items()
            ),
            "quotas": "".join(
                _element(name, _element("interval", "<duration>3600</duration>" + _settings(limit)))
                for name, limit in self.quotas.items()
            ),
        }

    def write(self, file: Path) -> Path:
        made = self.sections()
        made["users"] += _element(
            ADMINISTRATOR["user"],
            _login(ADMINISTRATOR["password"])
            + "<profile>default</profile><quota>default</quota>"
            + "<access_management>1</access_management>",
        )
        file.write_text(_element("clickhouse", "".join(_element(*part) for part in made.items())))
        return file


def documented() -> Access:
    """What the statements of the page create."""
    access = Access()
    for statement in statements():
        if found := _USER.fullmatch(statement):
            access.users[found[1]] = User(found[2])
        elif found := _GRANT.fullmatch(statement):
            access.users[found[2]].grants.append(found[1])
        elif found := _PROFILE.fullmatch(statement):
            pairs = (pair.split(" = ") for pair in found[2].split(", "))
            access.profiles[found[1]] = dict(pairs)
        elif found := _QUOTA.fullmatch(statement):
            access.quotas[found[1]] = {found[2]: found[3]}
            access.users[found[4]].quota = found[1]
        else:
            raise AssertionError(f"the tests cannot convert {statement!r}")
    return access


def password_of(user: str) -> str:
    return f"password-of-{user}"


def login(directory: Path, user: str) -> tuple[object, ...]:
    """The flags with which a command logs in as a user."""
    file = directory / f"{user}.password"
    file.write_text(password_of(user) + "\n")
    return ("--clickhouse-user", user, "--clickhouse-password-file", file)


class ClickHouseWithUsers(EmbeddedClickHouse):
    """The engine with these users; the tests query it as its administrator."""

    def __init__(self, directory: Path, access: Access) -> None:
        super().__init__(directory)
        self.argv += ["--users", str(access.write(directory / "users.xml"))]

    def query(self, sql: str, **settings: object) -> bytes:
        return clickhouse.query(self.url, sql, **{**ADMINISTRATOR, **settings})

    def lines(self, sql: str) -> list[str]:
        return self.query(sql + " FORMAT TabSeparated").decode().splitlines()

    def scalar(self, sql: str) -> str:
        (value,) = self.lines(sql)
        return value

    def as_user(self, user: str, sql: str) -> bytes:
        return self.query(sql, user=user, password=password_of(user))


def _user(name: str, user: User) -> str:
    grants = "".join(_element("query", escape(grant)) for grant in user.grants)
    return _element(
        name,
        _login(password_of(name))
        + f"<profile>{user.profile}</profile><quota>{user.quota}</quota>"
        + _element("grants", grants),
    )


def _login(password: str) -> str:
    return f"<password>{password}</password><networks><ip>127.0.0.1</ip></networks>"


def _settings(settings: Mapping[str, str]) -> str:
    return "".join(_element(*pair) for pair in settings.items())


def _element(name: str, content: str) -> str:
    return f"<{name}>{content}</{name}>"
