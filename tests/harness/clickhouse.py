"""Reading ClickHouse over its HTTP interface, byte for byte: a String column may hold any bytes, so
every text here has one character per byte (Latin-1), and a Map keeps its order and its duplicates.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request


class QueryError(Exception):
    """ClickHouse refused the query; the text is ClickHouse's."""


def query(url: str, sql: str, timeout: float = 60, **settings: object) -> bytes:
    """Runs one statement and returns the answer's body."""
    parameters = urllib.parse.urlencode({"wait_end_of_query": 1, **settings})
    request = urllib.request.Request(f"{url}/?{parameters}", data=sql.encode())
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        raise QueryError(error.read().decode(errors="replace")[:2000]) from None


def lines(url: str, sql: str) -> list[str]:
    """A one-column query as a list of strings (TSV-escaped, one character per byte)."""
    return query(url, sql + " FORMAT TabSeparated").decode("latin-1").splitlines()


def scalar(url: str, sql: str) -> str:
    """The single value of a one-row, one-column query."""
    (value,) = lines(url, sql)
    return value


def rows(url: str, sql: str) -> list[dict]:
    """Rows as dicts; 64-bit integers as strings, NaN as "nan", Maps as lists of [key, value]."""
    body = query(
        url,
        sql + " FORMAT JSONEachRow",
        output_format_json_quote_64bit_integers=1,
        output_format_json_quote_denormals=1,
        output_format_json_validate_utf8=0,
        output_format_json_escape_forward_slashes=0,
    ).decode("latin-1")
    # JSON escapes control characters, so a line feed always ends a row.
    found = []
    for line in body.split("\n"):
        if line:
            pairs = json.loads(line, object_pairs_hook=lambda pairs: [list(p) for p in pairs])
            found.append({name: value for name, value in pairs})
    return found
