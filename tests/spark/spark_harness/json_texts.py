"""Texts of JSON, most of them objects and most of those sound, with the awkward values of each type in each field."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from typing import Final

#: The schema of the objects, as Spark's DDL.
FIELDS: Final = (
    "whole long, i int, s short, b byte, real double, dec decimal(10,2), wide decimal(30,4), text string, "
    "ok boolean, ts timestamp, ntz timestamp_ntz, day date, `ключ` string, "
    "inner struct<whole: long, text: string, deep: struct<real: double>>, small float, list array<long>, "
    "lists array<array<struct<text: string>>>, map map<string, double>"
)

WHOLES: Final = [
    *("0", "7", "-1", "127", "128", "-128", "-129", "32767", "32768", "2147483647", "-2147483649", "-0", "00", "01"),
    *(
        "999999999999999999",
        "1000000000000000000",
        "9223372036854775807",
        "-9223372036854775808",
        "9223372036854775808",
    ),
    *("1.0", "1e3", "+1", "1_000", "0x1f", "--1", "12a", "1 2"),
]
REALS = [
    *("0.0", "-0.0", "0.1", "1.5", "-2.25", "3.141592653589793", "0.30000000000000004", "123456789.123456789"),
    *("9007199254740993", "9007199254740993.0", "1e22", "1e23", "1E-22", "1e-23", "4.9e-324", "1.7976931348623157e308"),
    *("1e400", "-1e-400", "2.2250738585072012e-308", "1e", "1.", ".5", "1.e5", "1e+05", "00.5", "-", "NaN", "Infinity"),
    *("0.000000000000000000000000000000012345678901234567", "123456789012345678901234567890", "5e-1", "0e7", "-0e0"),
    *("8.5e99999", "1e309", "6.02214076e23", "17976931348623157" + "0" * 292 + ".0", "9" * 70, "1." + "3" * 80),
]
DECIMALS = ["12.34", "12.345", "12.335", "99999999.99", "999999999.99", "-0.01", "-0.00", "1e2", "1e-1", "1e30"]
DECIMALS += ["0.1e-5", "123456789012345678.9"]
TEXTS = [
    *('""', '"a"', '"customer-0000017"', '"späť"', '"日本語"', '"😀"', '"a b"', '"\\""', '"\\u0041"', '"\\n"', '"\\x"'),
    *("'single'", '"tab\there"', '"nul\x00"', '"del\x7f"', '"\\ud83d\\ude00"', '"\\ud83d"', '"unended', "unquoted"),
]
TIMES = [
    *('"2024-02-29T12:34:56Z"', '"2023-02-29T12:34:56Z"', '"1969-12-31T23:59:59.999999Z"', '"1970-01-01T00:00:00Z"'),
    *('"2026-11-28T16:00:00.123Z"', '"2026-11-28T16:00:00.123456Z"', '"2026-11-28T16:00:00.1234567Z"'),
    *('"2026-11-28T16:00:00"', '"2026-11-28 16:00:00"', '"2026-11-28T16:00:00+02:00"', '"2026-10-25T02:30:00"'),
    *('"2026-11-28"', '"2026-11"', '"2026"', '"9999-12-31T23:59:59.999999Z"', '"0001-01-01T00:00:00Z"'),
    *('"1582-10-10T00:00:00Z"', '"1599-12-31T23:59:59Z"', '"1600-02-29T00:00:00Z"', '"1900-02-29T00:00:00Z"'),
    *('"2026-11-31T00:00:00Z"', '"2026-11-28T24:00:00Z"', '"2026-11-28T23:60:00Z"', '"2026-11-28T23:59:60Z"'),
    *(
        '"2026-11-28T16:00:00.Z"',
        '"2026-13-01T00:00:00Z"',
        '"2026-1-1T0:0:0Z"',
        '"2026-11-28T16:00:00z"',
        '" 2026-11-28"',
    ),
    *(
        '"2026-11-28T16:00:00.5 Europe/Paris"',
        '"+12026-11-28T00:00:00Z"',
        '"T16:00"',
        '""',
        '"now"',
        "1764345600",
        "-1",
    ),
    *('"20x6-11-28T16:00:00Z"', '"2026-11-28T16:00:00.12x456Z"', '"2026\\u002d11-28"', '"２026-11-28T16:00:00Z"'),
]
OTHERS = [
    "null",
    "true",
    "false",
    "nul",
    "TRUE",
    "{}",
    "[]",
    "[1,[2,{}]]",
    '{"a":{"b":[1,2,{"c":null}]}}',
    "[1,]",
    "{,}",
]
OTHERS += ["[" * 33 + "]" * 33, "[" * 31 + "]" * 31, '{"a":1 "b":2}', "/* c */ 1", '["\\u12"]', '["\\u00e9\\/"]', ""]
ARRAYS = ["[]", "[ ]", "[1]", "[1,null , 2]", "[1,]", "[,1]", '[1,"2"]', "[1.5]", "[[]]", "[1", "[1}", "[[null,[]]]"]
ARRAYS += ['[[{"text":"a"},{}],[]]', '[[{"text":7}]]', "[9223372036854775807]"]
MAPS = ["{ }", '{"a":1}', '{"a":1.5,"b":null , "a":2}', '{"":0}', '{"\\u0061":1}', '{"a":"x"}', '{"a":1,}', '{"ä":1e5}']
VALUES = [ARRAYS, MAPS, WHOLES, REALS, DECIMALS, TEXTS, TIMES, OTHERS]
BY_FIELD = {
    "real": REALS,
    "small": REALS,
    "dec": DECIMALS + REALS,
    "wide": DECIMALS + REALS,
    "text": TEXTS,
    "ok": OTHERS,
}
BY_FIELD |= {"list": ARRAYS, "lists": ARRAYS, "map": MAPS, "ключ": TEXTS, "ts": TIMES, "ntz": TIMES, "day": TIMES}
NAMES = ["whole", "i", "s", "b", "real", "dec", "wide", "text", "ok", "ts", "ntz", "day", "ключ"]
NAMES += ["small", "list", "lists", "map"]
STRANGE = ["", "Whole", "who\\u006ce", "unknown", "whole ", "inner.whole", "naïve", "x" * 300]


def sound(draw: random.Random, name: str) -> str:
    """A value as most writers of such objects write it."""
    size = 10 ** draw.randrange(1, 19)
    match name:
        case "real":
            return repr(draw.choice([draw.random(), draw.gauss(0, size), draw.randrange(size), draw.random() / size]))
        case "dec" | "wide":
            return f"{draw.randrange(-(10**7), 10**7)}.{draw.randrange(100):02}"
        case "ts" | "ntz" | "day":
            at = dt.datetime(1960, 1, 1) + dt.timedelta(microseconds=draw.randrange(10**16))
            zone = draw.choice(["Z", "Z", "", "+05:30"]) if name == "ts" else ""
            return f'"{at.date() if name == "day" else at.isoformat(draw.choice("T "))}{zone}"'
        case "ok":
            return draw.choice(["true", "false"])
        case "text" | "ключ":
            return f'"{draw.choice(["a", "customer-", "späť", "日本"])}{draw.randrange(size)}"'
        case "inner":
            return inner(draw)
        case "small":
            return repr(draw.choice([draw.random(), draw.gauss(0, size), draw.randrange(size)]))
        case "list":
            return str([draw.randrange(-size, size) for _ in range(draw.randrange(4))])
        case "lists":
            return "[[" + ",".join('{"text":' + sound(draw, "text") + "}" for _ in range(draw.randrange(3))) + "]]"
        case "map":
            return "{" + ",".join(f'"{k}":{sound(draw, "real")}' for k in draw.sample("abcä", draw.randrange(4))) + "}"
        case "whole":
            return str(draw.randrange(-size, size))
    return str(draw.randrange(-128, 128))


def member(draw: random.Random, name: str) -> str:
    value = sound(draw, name)
    if draw.random() < 0.1:
        value = draw.choice(BY_FIELD.get(name, WHOLES) if draw.random() < 0.8 else draw.choice(VALUES))
    blank = draw.choice(["", "", "", " ", "\n\t"])
    return f'{blank}"{name}"{blank}:{blank}{value}{blank}'


def inner(draw: random.Random) -> str:
    names = draw.sample(["whole", "text", "deep", "other"], draw.randrange(5))
    deep = '"deep":' + draw.choice(['{"real":1.5}', "{}", "null", '{"real":"x"}', '{"real":2,"real":3.5}'])
    return "{" + ",".join(deep if n == "deep" else member(draw, n) for n in names) + "}"


def json_text(draw: random.Random) -> bytes:
    """A text of an object, mostly sound."""
    names = draw.sample([*NAMES, "inner"], draw.randrange(1, 5)) + draw.choices(STRANGE, k=draw.choice([0, 0, 1]))
    if draw.random() < 0.1:
        names.append(names[0])
    text = bytearray("{" + ",".join(member(draw, name) for name in names) + "}", "utf-8")
    if draw.random() < 0.1:
        at = draw.randrange(len(text))
        text[at : at + draw.randrange(3)] = draw.choice(
            [b"", b'"', b"\\", b"\xc3", b"\xed\xa0\x80", b"}", b",", b"\xff"]
        )
    around = draw.choice(
        [(b"", b"")] * 12 + [(b" ", b"\n"), (b"", b" x"), (b"\xef\xbb\xbf", b""), (b"", b"{}"), (b"[", b"]")]
    )
    return around[0] + bytes(text) + around[1]


def every_value_alone() -> Iterator[bytes]:
    """Each value in each field, and the texts that are no objects."""
    for name in [*NAMES, "inner", "unknown"]:
        for value in [v for kinds in VALUES for v in kinds]:
            yield f'{{"{name}":{value}}}'.encode()
    yield from (
        b"",
        b" ",
        b"null",
        b"{}",
        b"[]",
        b"7",
        b'"x"',
        b'[{"whole":1}]',
        b"{",
        b'{"whole"',
        b'{"whole":',
        b'{"whole":1',
    )
    yield b'{"text":"' + b"x" * 40_000 + b'"}'
    yield b'{"' + b"n" * 60_000 + b'":1}'
