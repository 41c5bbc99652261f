"""Redaction: planted secrets are replaced, ordinary text stays, and redacting twice changes nothing."""

from __future__ import annotations

import base64
import json
import random
import re
import string
import time
import uuid
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from audit.patterns import encode
from audit.policy import RedactionSettings, SecretPattern
from audit.redaction import BUILT_IN, MAX_DEPTH, RANDOM_RUN, SECRET_PREFILTER, SPECIFIC_PREFILTER, Redactor
from schemas.errors import BoundsError, PolicyError

REDACTOR = Redactor(RedactionSettings())
MARKER = re.compile(r"\[SECRET:[a-z][a-z0-9_]*:[0-9a-f]{8}\]")
PLANTING = random.Random(20)


def lot(length: int, alphabet: str = string.ascii_letters + string.digits, seeded: random.Random = PLANTING) -> str:
    """Return random characters, the same in every run."""
    return "".join(seeded.choices(alphabet, k=length))


PEM = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0F\n\n" + f"{lot(64)}\n" * 9
PEM += "ab==\n-----END RSA PRIVATE KEY-----"
JWT = ".".join(
    base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
    for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": "1234"})
)
# kind, text with the secret, the secret
PLANTED = [
    *(
        ("provider_key", "use {} now", secret)
        for secret in (
            f"sk-ant-api03-{lot(40)}-_{lot(20)}AA",
            f"sk-{lot(48)}",
            f"sk-proj-{lot(30)}_{lot(9)}",
            f"ghp_{lot(36)}",
            f"github_pat_{lot(22)}_{lot(59)}",
            f"xoxb-123456789012-{lot(24)}",
            f"AIza{lot(35)}",
            f"glpat-{lot(20)}",
            f"hf_{lot(34, string.ascii_letters)}",
            f"npm_{lot(36)}",
            f"sk_live_{lot(24)}",
            f"SG.{lot(22)}.{lot(43)}",
            f"123456789:AA{lot(33)}",
        )
    ),
    ("private_key", "key:\n{}\nend", PEM),
    ("private_key", '"key": "{}"', PEM.replace("\n", "\\n")),
    ("private_key", "cut off: {}", PEM[:400]),
    ("jwt", "jwt {}.", f"{JWT}.{lot(43)}"),
    ("authorization", "Authorization: Bearer {}", "abc.DEF-123"),
    ("authorization", "curl -H 'authorization: token {}' x", lot(20, string.ascii_lowercase)),
    ("authorization", '{{"Authorization": "Basic {}"}}', base64.b64encode(b"user:pass").decode()),
    ("authorization", "send Bearer {} along", lot(12, string.digits)),
    ("authorization", "send Basic {} along", base64.b64encode(b"aladdin:open sesame").decode()),
    ("cloud_key", "id {} in", f"AKIA{lot(16, string.ascii_uppercase)}"),
    ("cloud_key", "id {} in", f"ASIA{lot(16, string.ascii_uppercase)}"),
    ("cloud_key", "aws_secret_access_key = {}", f"{lot(20)}/{lot(19)}"),
    ("cloud_key", "AccountName=x;AccountKey={};y", f"{lot(42)}+/=="),
    ("connection_password", "postgres://user:{}@db.example.com:5432/app", "hunter2"),
    ("connection_password", "redis://:{}@cache", "p@ss"),
    ("connection_password", "see mongodb+srv://u:{}@h/x?y=z.", "päss"),
    ("password", "password={}", "hunter2"),
    ("password", "DB_PASSWORD: {}", "hunter2"),
    ("password", "api_key: '{}'", "not so long"),
    ("password", '{{"client_secret": "{}"}}', "correct horse battery"),
    ("password", '{{\\"password\\": \\"{}\\"}}', "abc def"),
    ("password", "Server=x;Uid=sa;Pwd={};Database=y", "Pa55w0rd!"),
    ("password", "passphrase => {}", "swordfish"),
    ("password", "dbPassword: {}", "hunter2"),
    ("password", "OPENAI_API_KEY={}", "hunter2"),
    ("password", "GITHUB_TOKEN_PROD={}", "hunter2"),
    ("password", "app --password {} go", "hunter2"),
    ("password", "app --token={}", "x1"),
    ("password", "app --api-key '{}'", "two words"),
    ("password", "curl -s -u user:{} https://a.example", "hunter2"),
    ("password", "curl --user 'user:{}' https://a.example", "hunter2"),
    ("password", "mysql -h db -p{} app", "Pa55"),
    ("password", "mysqldump -uroot -p'{}' app", "Pa55"),
    ("password", "sshpass -p {} ssh host", "x1"),
    ("password", "https://a.example/b?x=1&sig={}", "x1"),
    ("password", "https://a.example/b?token={}&x=1", "x1"),
    ("password", "https://a.example/b?api_key={}", "x1"),
    ("password", "https://a.example/b?X-Amz-Signature={}", "0a1b2c3d"),
    ("password", '{{"cookie":"{}","cut', "a=b; c=d"),
    ("password", '{{"credentials":"{}"', "x1"),
    ("password", '{{"userPassword":"{}"', 'a\\"b'),
    ("password", '{{"token": {}', "12345678905"),
    ("password", '{{"password":[{}', '"abc", "def"'),
    ("password", '{{"secret": {{"value": {}', '"abc"'),
    ("password", '{{"name": "Authorization", "value": "{}"', "abc"),
    ("password", '["Authorization", "{}"', "abc"),
    ("password", '["--password", "{}"', "abc"),
    ("cookie", "Cookie: {}", "sid=1; theme=dark"),
    ("cookie", "-H 'Cookie: {}' x", 'a="1"; b=2'),
    ("cookie", "Set-Cookie: {}", "sid=1; Path=/; HttpOnly"),
    ("high_entropy", "value {} ok", "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8v"),
    ("high_entropy", "file /var/{}/x", "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8v"),
    ("high_entropy", "blob {} ok", f"q{lot(30)}+7Z/{lot(20)}=="),
]

ORDINARY = [
    "",
    "The quick brown fox jumps over the lazy dog.",
    "Authorization is required. A bearer of bad news; basic authentication, basic TypeScript.",
    "What is a password? Choose a token and a secret. The API key goes there.",
    'password: string; token: str, secret = None, api_key="..." password=<your-password>',
    "token=${TOKEN} api_key = os.environ['KEY'] password=get_password() secret: {{ vault }} PWD=/home/me/project",
    "max_tokens: 4096, prompt_tokens=12345, tokens: 9",
    '"max_tokens": 4096, "token_type": "bearer", "token_count": 12345, "max_token": 4096, maxToken=4096 tokenizer: gpt2',
    "the password policy; a cookie: 2; Secretary: Anna Smith; use --password to give it; --token TOKEN",
    '{"required": ["password", "username"]}',
    "docker run mysql -p3306:3306; mysql --port 3306; curl -u user https://a.example/b; sshpass is a tool",
    "https://a.example/b?page=2&sort=asc&design=x",
    "https://example.com:443/users/@me http://localhost:8080/a?b=c mail me@example.com",
    "d41d8cd98f00b204e9800998ecf8427e E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855",
    "0xAbCdEf0123456789aBcDeF0123456789AbCdEf01 sha256:" + "0a1b" * 16,
    "550e8400-e29b-41d4-a716-446655440000 550E8400-E29B-41D4-A716-446655440000",
    "/usr/lib/python3/dist-packages/SomePackage2/module_name.py src/components/UserProfile2/UserProfileHeader.tsx",
    "getUserAccountInformationFromDatabase2 TheQuickBrownFoxJumpsOverTheLazyDog2024 my-long-kebab-case-name-2",
    "Qwen2-VL-7B-Instruct-GPTQ-Int4 claude-haiku-4-5-20251001 2024-01-01T00-00-00Z-Backup-Of-Everything",
    "toolu_01A09q90qw90lq917835lq9XyZ call_8gV2kQx7ZbN4mWc1LpR5tYhJ sha512-" + "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8v" * 3,
    "sk-this-is-a-long-css-class-name risk-management ask-me-anything-about-this-topic",
    "-----BEGIN PUBLIC KEY-----\nabc\n-----END PUBLIC KEY-----",
    "\ud800 \udfff \x00 \u202e",
]

FRAGMENTS = [
    *(text.format(secret) for _, text, secret in PLANTED),
    *ORDINARY,
    *(secret for _, _, secret in PLANTED),
    *[
        "password=",
        '"password":',
        "--token ",
        "Cookie: a=",
        "curl -u a:",
        "?sig=",
        "[",
        "{",
        "token:",
        "Bearer",
        "://",
        "@",
        "/",
        "=",
        "+",
        "-",
        "_",
        ".",
        "'",
        '"',
        "\\",
        "\n",
        ":",
        "eyJ",
        "sk-",
        "AKIA",
        "[SECRET:a:00000000]",
        "[SECRET:",
        "]",
        "é",
        "�",
    ],
    "-----BEGIN PRIVATE KEY-----",
    " ",
]
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=8), max_size=8).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "Password", "api-key", "note", "name", "value"]) | texts, inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(("kind", "text", "secret"), PLANTED)
def test_a_planted_secret_is_taken_out_and_nothing_else(kind: str, text: str, secret: str) -> None:
    """A secret in the log has leaked, and text removed with it is lost evidence."""
    redacted, counts = REDACTOR.redact(text.format(secret))
    assert Counter({kind: 1}) == counts
    before, after = text.format("\0").split("\0")
    assert re.fullmatch(re.escape(before) + rf"\[SECRET:{kind}:[0-9a-f]{{8}}\]" + re.escape(after), redacted)


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    """An audit needs digests, ids, paths, names and sentences about passwords."""
    assert REDACTOR.redact(text) == (text, Counter())


def test_digests_and_ids_of_every_shape_stay() -> None:
    """With one error in a thousand, every long session would have one."""
    seeded = random.Random(1)
    for _ in range(500):
        digests = lot(40, "0123456789abcdef", seeded), lot(64, "0123456789ABCDEF", seeded)
        for text in (*digests, str(uuid.UUID(int=seeded.getrandbits(128)))):
            assert REDACTOR.redact(f"id {text} x")[0] == f"id {text} x"


def test_most_random_tokens_of_32_characters_are_found() -> None:
    """No rule about randomness finds all secrets; this pins the share it finds."""
    seeded = random.Random(2)
    found = sum(bool(REDACTOR.redact(f"x {lot(32, seeded=seeded)} y")[1]) for _ in range(500))
    assert found >= 450


@settings(deadline=None, max_examples=examples(300))
@given(texts)
def test_redacting_twice_is_redacting_once_and_the_counts_are_right(text: str) -> None:
    """Texts are redacted at several points; a marker that changed at the second would change every digest."""
    redacted, counts = REDACTOR.redact(text)
    assert REDACTOR.redact(redacted) == (redacted, Counter())
    assert counts.total() == len(MARKER.findall(redacted)) - len(MARKER.findall(text))
    assert (redacted == text) == (not counts)


@settings(deadline=None)
@given(values)
def test_redacting_json_twice_is_redacting_it_once(value: Any) -> None:
    """Payloads are redacted on ingestion and again before they are shown."""
    redacted, counts = REDACTOR.redact_json(value)
    assert REDACTOR.redact_json(redacted) == (redacted, Counter())
    assert bool(counts) == (redacted != value)


def test_json_is_walked_with_its_keys_and_its_shape_stays() -> None:
    """Secrets are in nested arguments, under telling names, and sometimes in a key."""
    key = f"ghp_{'aB3' * 12}"
    value = {
        "args": [{"Api-Key": "short", "n": 1, "password": 12, "token": None, "secret": ""}, f"use {key}"],
        key: True,
        "ok": "yes",
    }
    redacted, counts = REDACTOR.redact_json(value)
    arguments, marker, last = redacted
    assert arguments == "args"
    assert last == "ok"
    assert MARKER.fullmatch(marker)
    fields, text = redacted["args"]
    assert MARKER.fullmatch(fields.pop("Api-Key"))
    assert MARKER.fullmatch(fields.pop("password"))
    assert fields == {"n": 1, "token": None, "secret": ""}
    assert text == f"use {marker}"
    assert counts == Counter(secret_field=2, provider_key=2)


SENSITIVE = [
    "password",
    "DB_PASSWORD",
    "dbPassword",
    "user_password",
    "userpassword",
    "passwd",
    "PGPASSWORD",
    "db_pass",
    "OPENAI_API_KEY",
    "x-api-key",
    "apiKey",
    "API-Key",
    "stripe_secret",
    "clientSecret",
    "SECRET_KEY_BASE",
    "token",
    "accessToken",
    "refresh_token",
    "GITHUB_TOKEN_PROD",
    "auth_tokens",
    "authorization",
    "Proxy-Authorization",
    "Cookie",
    "set-cookie",
    "session.cookie",
    "credentials",
    "aws_credential",
    "private_key",
    "ssh-private-key",
    "accessKey",
    "session_key",
    "signature",
    "thinkingSignature",
    "connectionString",
    "passphrase",
    "password2",
    "password_hash",
]
HARMLESS = [
    "max_tokens",
    "total_tokens",
    "token_count",
    "tokens",
    "input_tokens",
    "prompt_tokens",
    "cache_read_tokens",
    "tokenizer",
    "token_type",
    "tokenCount",
    "max_token",
    "maxToken",
    "eos_token",
    "password_policy",
    "secretary",
    "key",
    "keys",
    "author",
    "name",
    "passing",
    "monkey",
    "cookie_consent",
    "design",
]


@pytest.mark.parametrize("name", SENSITIVE)
def test_a_telling_name_tells_in_json_and_in_text(name: str) -> None:
    """The kind of a secret does not depend on the notation around it."""
    redacted, counts = REDACTOR.redact_json({name: "hunter2"})
    assert MARKER.fullmatch(redacted[name])
    assert counts == Counter(secret_field=1)
    assert all("hunter2" not in REDACTOR.redact(text)[0] for text in (f"{name}=hunter2", f'{{"{name}": "hunter2"'))


@pytest.mark.parametrize("name", HARMLESS)
def test_a_name_that_only_resembles_one_does_not(name: str) -> None:
    """An audit of cost needs counts of tokens."""
    for value in ({name: 12345}, {name: "hunter2"}, {name: {"a": [1]}}):
        assert REDACTOR.redact_json(value) == (value, Counter())
    for text in (f"{name}=12345", f'{{"{name}": 12345'):
        assert REDACTOR.redact(text) == (text, Counter())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"password": ["a", {"b": 1.5}]}, {"password": ["S", {"b": "S"}]}),
        ({"token": 12345678905, "secret": True}, {"token": "S", "secret": True}),
        ({"secret": {"value": "a", "n": None, "on": False}}, {"secret": {"value": "S", "n": None, "on": False}}),
        ([{"name": "Authorization", "value": "a"}], [{"name": "Authorization", "value": "S"}]),
        ({"key": "DB_PASSWORD", "value": 1}, {"key": "DB_PASSWORD", "value": "S"}),
        ({"name": "limit", "value": 1}, {"name": "limit", "value": 1}),
        ([["Authorization", "a"], ["Accept", "a"]], [["Authorization", "S"], ["Accept", "a"]]),
        (["app", "--password", "a", "--token", "--force"], ["app", "--password", "S", "--token", "--force"]),
        (["password", "username"], ["password", "username"]),
        ({"usage": {"total_tokens": 5, "tokens": {"input": 5}}}, {"usage": {"total_tokens": 5, "tokens": {"input": 5}}}),
    ],
)
def test_json_gives_secrets_away_by_their_place(value: Any, expected: Any) -> None:
    """Secrets are in lists, objects and numbers, headers and arguments; the structure around them stays."""
    redacted, _ = REDACTOR.redact_json(value)
    assert json.loads(MARKER.sub("S", json.dumps(redacted))) == expected


def test_json_that_is_too_deep_is_refused() -> None:
    """A value of a hundred thousand brackets must not crash the process; it is refused."""
    value: Any = "password=hunter2"
    for _ in range(MAX_DEPTH):
        value = [value]
    assert REDACTOR.redact_json(value)[1] == Counter(password=1)
    for _ in range(100_000):
        value = [value]
    for deep in (value, {"password": value}):
        with pytest.raises(BoundsError, match="deeper than 32"):
            REDACTOR.redact_json(deep)


def test_one_secret_has_one_marker_under_one_key() -> None:
    """The marker identifies a leaked secret across a fleet, without revealing it."""
    first, second = (REDACTOR.redact(text)[0] for text in ("password=hunter2", "x password: hunter2 y"))
    assert MARKER.findall(first) == MARKER.findall(second)
    assert MARKER.findall(first) != MARKER.findall(REDACTOR.redact("password=hunter3")[0])
    assert first != Redactor(RedactionSettings(), key=b"other").redact("password=hunter2")[0]


def test_a_policy_adds_kinds_of_its_own() -> None:
    """Every company has its own kinds of secrets."""
    custom = RedactionSettings(patterns=(SecretPattern(kind="employee", pattern=r"\bEMP-[0-9]{6}\b"),))
    redacted, counts = Redactor(custom).redact("by EMP-123456, EMP-1234567, emp-123456")
    assert re.fullmatch(r"by \[SECRET:employee:[0-9a-f]{8}\], EMP-1234567, emp-123456", redacted)
    assert counts == Counter(employee=1)
    with pytest.raises(PolicyError, match=r"redaction\.patterns\[0\]\.pattern"):
        Redactor(RedactionSettings(patterns=(SecretPattern(kind="a", pattern="("),)))


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join))
def test_a_first_look_misses_no_kind(text: str) -> None:
    """Only texts that the prefilter selects are searched for secrets, kind by kind."""
    data = encode(text)
    if any(next(kind.spans(data), None) is not None for kind in BUILT_IN):
        assert SECRET_PREFILTER.found_in(data)
    if any(next(kind.spans(data), None) is not None for kind in BUILT_IN if kind is not RANDOM_RUN):
        assert SPECIFIC_PREFILTER.found_in(data)


@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=4).map("".join), max_size=4))
def test_a_first_look_at_several_texts_changes_nothing(texts: list[str]) -> None:
    """Most exchanges contain no secret, so their texts are searched once, together."""
    redactor = Redactor(RedactionSettings())
    assert [redactor.redact(text) for text in texts] == list(map(redactor.redact_function(texts), texts))


@settings(max_examples=examples(200))
@given(
    st.lists(st.lists(st.sampled_from((*FRAGMENTS, "call_" + "4f9a" * 8, "k1")), max_size=4).map("".join), max_size=6),
    st.booleans(),
)
def test_a_look_at_many_texts_passes_over_what_holds_no_secret_alone(texts: list[str], has_own: bool) -> None:
    """Spans are searched by the hundred, and most suspects are ids; no secret may be taken for one."""
    own = (SecretPattern(kind="a", pattern="^k[0-9]$"),) if has_own else ()
    redactor = Redactor(RedactionSettings(patterns=own))
    looked = redactor.with_prefilter([*texts, an_id := "call_" + "4f9a" * 8])
    assert [redactor.redact(text) for text in texts] == [looked.redact(text) for text in texts]
    assert looked.is_clean(an_id)


def test_patterns_of_a_policy_have_their_first_look() -> None:
    """The prefilter must know the policy's kinds, or a text with only such a secret would be skipped."""
    patterns = (r"\AEMP-[0-9]{6}$", r"(?-m:^k[0-9]+)", r"(?i)badge no\. [0-9]+")
    custom = Redactor(RedactionSettings(patterns=tuple(SecretPattern(kind="a", pattern=pattern) for pattern in patterns)))
    for secret in ("EMP-123456", "k1", "BADGE no. 7"):
        assert custom.redact(secret)[1] == Counter(a=1)


def test_a_pattern_that_cuts_characters_in_two_does_no_harm() -> None:
    r"""`\C` matches a single byte, which must not split a character."""
    redactor = Redactor(RedactionSettings(patterns=(SecretPattern(kind="a", pattern=r"x\C"),)))
    redacted, counts = redactor.redact("é xé xéé \ud800x\ud800")
    assert re.fullmatch("é S Sé \ud800S", MARKER.sub("S", redacted))
    assert counts == Counter(a=3)


def test_redaction_can_be_switched_off() -> None:
    """Some fleets have no secrets and want unchanged texts."""
    off = Redactor(RedactionSettings(enabled=False))
    assert off.redact("password=hunter2") == ("password=hunter2", Counter())
    assert off.redact_json({"password": "x"}) == ({"password": "x"}, Counter())


@pytest.mark.parametrize(
    "piece",
    [
        "eyJ-AKIAABCDEFGHIJKLMNOP-",
        "-----BEGIN PRIVATE KEY-----\nA: b",
        'password="',
        "password=\\",
        "eyJaaaaaaaaa.",
        "SG.-ghp_aaaaaaaaaaaaaaaaaaaaa",
        "://a:",
        "token:[SECRET:a:00000000]x",
        "aB1" * 8 + "/",
        "\ud800",
        '"password":[',
        '"password":{"a":',
        "Cookie: a=",
        'cookie: a="',
        "curl ",
        "curl -u ",
        "mysql -p",
        "--password ",
        "?password",
        "max_token=",
        '"name": "x-token", ',
        "api_",
    ],
)
def test_hostile_text_takes_linear_time(piece: str) -> None:
    """Half a megabyte of partial matches, the largest body, takes seconds if linear, hours if not."""
    started = time.process_time()
    REDACTOR.redact(piece * (512 * 1024 // len(piece)))
    assert time.process_time() - started < 10
