"""
What a caller may submit, field by field.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from crq.messages import Submission
from crq.submissions import SOURCE_LIMIT, Refusal, json_value, submission

GOOD: dict[str, Any] = {"subdomain": "acme", "apikey": "key", "source_code": "x = 1"}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # No lone surrogates: JSON can spell them, UTF-8 cannot.
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


class Case(SynchronousTestCase):
    """
    With an assertion for refusals.
    """

    def assert_refused(self, field: str, **changes: Any) -> Refusal:
        """
        Check that a submission with these changes is refused for a field, with all three texts.
        """
        key = changes.pop("idempotency_key", None)
        with self.assertRaises(Refusal) as caught:
            submission({**GOOD, **changes}, key)
        refusal: Refusal = caught.exception
        self.assertEqual((refusal.field, refusal.http_status), (field, 422), changes)
        self.assertTrue(refusal.problem)
        self.assertTrue(refusal.remedy)
        return refusal


class FieldTests(Case):
    """
    `submission`.
    """

    def test_takes_what_is_good(self) -> None:
        """
        Every field arrives as it was given.
        """
        made = submission(
            {**GOOD, "identifier": "rule 7", "payload": {"card": 7}, "debug": True}, "abc-1"
        )
        self.assertEqual(
            made,
            Submission("acme", "key", "x = 1", "rule 7", '{"card":7}', True, "abc-1"),
        )

    def test_optional_fields_may_be_null_or_missing(self) -> None:
        """
        Null and missing are the same for a field that is not needed.
        """
        nulls = {"identifier": None, "payload": None, "debug": None}
        self.assertEqual(submission({**GOOD, **nulls}), submission(GOOD))

    def test_needed_fields_are_asked_for(self) -> None:
        """
        A field that is missing, null, empty or not a text is refused by its name.
        """
        for field in GOOD:
            values: tuple[Any, ...] = (None, "", 7, True, [], {})
            for value in values:
                self.assert_refused(field, **{field: value})

    def test_subdomain_is_one_label_in_lower_case(self) -> None:
        """
        Case does not make two accounts of one; what is no DNS label is refused.
        """
        self.assertEqual(submission({**GOOD, "subdomain": "AcMe-2"}).subdomain, "acme-2")
        self.assertEqual(submission({**GOOD, "subdomain": "a" * 63}).subdomain, "a" * 63)
        for label in (
            *("-acme", "acme-", "a.b", "a b", " acme", "acme\n", "acme.", "a" * 64, "a_b"),
            *("ünlaut", "\u212acme", "аcme", "a/b", "a:b", "a@b", "a\0"),  # Kelvin, Cyrillic
        ):
            self.assert_refused("subdomain", subdomain=label)

    def test_apikey_is_printable_ascii(self) -> None:
        """
        A key that could not be a header's value is refused, and never repeated in the refusal.
        """
        self.assertEqual(submission({**GOOD, "apikey": "k" * 500}).apikey, "k" * 500)
        self.assertEqual(submission({**GOOD, "apikey": "a b"}).apikey, "a b")
        for key in ("k" * 501, " sesame", "sesame ", "sesame\n", "ses\tame", "sésame", "\x7f"):
            self.assertNotIn(key.strip(), str(self.assert_refused("apikey", apikey=key)))

    def test_source_is_text_that_can_be_stored(self) -> None:
        """
        Blank, NUL, half a surrogate pair and more than the column holds are refused.
        """
        for source in (" \n\t", "x\0y", "x\ud83d", "x" * (SOURCE_LIMIT + 1)):
            self.assert_refused("source_code", source_code=source)
        self.assert_refused("source_code", source_code="é" * (SOURCE_LIMIT // 2 + 1))
        emoji = "x = '👨‍👩‍👧→שלום'"
        self.assertEqual(submission({**GOOD, "source_code": emoji}).source_code, emoji)

    def test_identifier_fits_its_column(self) -> None:
        """
        255 characters, of any kind.
        """
        self.assertEqual(submission({**GOOD, "identifier": "é" * 255}).identifier, "é" * 255)
        for identifier in ("é" * 256, 7, "\udc00"):
            self.assert_refused("identifier", identifier=identifier)

    def test_debug_is_a_boolean(self) -> None:
        """
        A text that looks like one is none.
        """
        values: tuple[Any, ...] = ("true", 1, 0, "", [])
        for value in values:
            self.assert_refused("debug", debug=value)

    def test_idempotency_key_is_visible_ascii(self) -> None:
        """
        1 to 255 characters that a header can carry.
        """
        self.assertEqual(submission(GOOD, "k" * 255).idempotency_key, "k" * 255)
        for key in ("", "k" * 256, "a b", "a\n", "é", "\x00"):
            self.assert_refused("idempotency_key", idempotency_key=key)

    def test_unknown_fields_are_refused_with_a_hint(self) -> None:
        """
        A misspelt field is named with the one that was meant, and never longer than it is useful.
        """
        self.assertIn("source_code", self.assert_refused("sourcecode", sourcecode="x").remedy)
        self.assertLessEqual(len(self.assert_refused("x" * 64, **{"x" * 9999: 1}).field), 64)
        self.assert_refused("\\u202e", **{"\u202e": 1})


class PayloadTests(Case):
    """
    The payload's one text.
    """

    def test_same_value_is_the_same_text(self) -> None:
        """
        Order and blanks of the caller's JSON do not matter: a repetition is known by its text.
        """
        one = submission({**GOOD, "payload": json_value('{"b": [1, 2.50], "a": "é"}', "payload")})
        two = submission({**GOOD, "payload": json_value('{"a":"\\u00e9","b":[1,2.5]}', "payload")})
        self.assertEqual(one.payload, '{"a":"é","b":[1,2.5]}')
        self.assertEqual(one, two)

    def test_what_json_cannot_say_is_refused(self) -> None:
        """
        Infinite numbers, half a surrogate pair, and values that are none of JSON's.
        """
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        for value in (float("inf"), float("nan"), {"a": "\ud800"}, object(), {1, 2}, deep):
            self.assert_refused("payload", payload=value)
        while deep:  # taken apart by hand: its end would nest as deeply as it does
            deep = deep.pop()

    @given(json_values)
    @settings(max_examples=100, deadline=None)
    def test_every_value_survives(self, value: Any) -> None:
        """
        What is stored reads back as the value that was given.
        """
        text = submission({**GOOD, "payload": value}).payload
        self.assertEqual(None if text is None else json.loads(text), value)


class JsonTests(Case):
    """
    `json_value`.
    """

    def test_strict_json_only(self) -> None:
        """
        What two readers might read differently is refused, and nothing is raised but a refusal.
        """
        for text in (
            *("", "{", "nul", "NaN", "-Infinity", '{"a":1,"a":2}', "'a'", "[1,]", "\ufeff1"),
            *("1" * 5000, "[" * 200_000, '{"a":' * 200_000),
            *(b"\xff", b'"\xed\xa0\x80"', b"\xff\xfe1\x00"),
        ):
            with self.assertRaises(Refusal) as caught:
                json_value(text, "body", 400)
            self.assertEqual((caught.exception.field, caught.exception.http_status), ("body", 400))

    @given(st.text() | st.binary())
    @settings(max_examples=200, deadline=None)
    def test_any_text_is_read_or_refused(self, text: str | bytes) -> None:
        """
        No input raises anything else.
        """
        try:
            json_value(text, "body")
        except Refusal as refusal:
            self.assertEqual(refusal.field, "body")
