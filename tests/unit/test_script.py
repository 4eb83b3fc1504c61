"""
The language of the scripts: what parses, what runs, how a failure is told.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import starlark
from twisted.trial.unittest import SynchronousTestCase

from crq import script
from crq.script import DEPTH_LIMIT, CallFailed, Fault, SyntaxFault

Send = Callable[[str, str, Any], dict[str, Any]]


def _answer(method: str, path: str, body: Any) -> dict[str, Any]:
    return {"status": 200, "json": {"method": method, "path": path, "body": body}, "text": "ok"}


def _run(
    source: str,
    payload: Any = None,
    send: Send = _answer,
    over: Callable[[], str | None] = lambda: None,
) -> str:
    printed: list[str] = []
    script.run(source, payload, send, printed.append, over)
    return "\n".join(printed)


class ParseTests(SynchronousTestCase):
    """
    `script.parse`.
    """

    def fault(self, source: str) -> SyntaxFault:
        fault: SyntaxFault = self.assertRaises(SyntaxFault, script.parse, source)
        return fault

    def test_a_fault_says_where(self) -> None:
        """
        A script that does not parse is told with its message, line and column.
        """
        fault = self.fault("x = 1\nif x:\n    y = = 2\n")
        self.assertEqual((fault.line, fault.column), (3, 9))
        self.assertIn("unexpected symbol '='", fault.message)
        self.assertNotIn("-->", fault.message)

    def test_a_far_line(self) -> None:
        """
        The place is found on any line.
        """
        self.assertEqual(self.fault("x = 1\n" * 1234 + "y = = 1").line, 1235)

    def test_loops_and_functions_at_the_top(self) -> None:
        """
        A script may loop and branch at its top level, and format strings.
        """
        script.parse("def f(n):\n  return n\nfor i in range(3):\n  if i:\n    x = f'{i}'\n")

    def test_no_way_out(self) -> None:
        """
        A script can load, import and loop for ever as little as it can open a file.
        """
        for source in ("load('a.star', 'b')", "import os", "while True:\n  pass"):
            self.fault(source)
        self.assertRaises(Fault, _run, "open('/etc/passwd')")
        self.assertRaises(Fault, _run, "().__class__")

    def test_lines_may_end_as_on_windows(self) -> None:
        """
        CR LF is an end of line; a lone CR is refused, since it hides code from a reader.
        """
        script.parse("x = 1\r\nif x:\r\n  y = '''a\r\nb'''\r\n")
        self.assertEqual(self.fault("# done\ry = 2\n").column, 7)

    def test_half_a_character(self) -> None:
        """
        A lone surrogate is a fault with a place, not an error of the interpreter.
        """
        fault = self.fault("x = 1\ny = '\ud83d'")
        self.assertEqual((fault.line, fault.column), (2, 6))

    def test_too_deep_for_the_stack(self) -> None:
        """
        A script that would overflow the parser's stack, and end the process, is refused.
        """
        n = 100_000
        for source in (
            "x=" + "(" * n + ")" * n,
            "x=" + "[1," * n + "]" * n,
            "x=" + "not " * n + "1",
            "x=" + "1+" * n + "1",
            "x=(" + "1+\n" * n + "1)",
            "x=a" + "(1,2)" * n,
            "x=" + "lambda a,b:" * n + "1",
            "x=[1 " + "for a,b in c " * n + "]",
            "x=[1" + "for a,b in 1" * n + "]",
            "if 1:\n pass\n" + "elif 1:\n pass\n" * n,
            "".join(" " * i + "if 1:\n" for i in range(1000)) + " " * 1000 + "x=1",
        ):
            self.assertIn(f"deeper than {DEPTH_LIMIT}", self.fault(source).message, source[:20])

    def test_long_is_not_deep(self) -> None:
        """
        Many lines, long lists, long texts and long comments are not nested at all.
        """
        n = 5000
        script.parse("x = 1\n" * n)
        script.parse("x = [" + "{'a': (1, 2)},\n" * n + "]")
        script.parse("x = '" + "[" * n + "'\n#" + "(" * n)
        script.parse("x = '''" + '["' * n + "'''")
        script.parse("def f(a):\n  return [a]\n" * n)

    def test_what_fits_is_evaluated(self) -> None:
        """
        A script just within the limit is evaluated without harm to the process.
        """
        n = DEPTH_LIMIT - 10
        _run("x=" + "[" * n + "]" * n)
        _run("".join(" " * i + "if 1:\n" for i in range(n)) + " " * n + "x=1")
        _run("if 0:\n pass\n" + "elif 0:\n pass\n" * n)

    def test_the_count_sees_what_the_parser_sees(self) -> None:
        """
        Whatever quotes, escapes and comments surround it, the parser meets no word that the count
        of the depth has taken for text: nothing can be hidden from it.
        """
        pieces = ["'", '"', "'''", '"""', "\\", "\n", "r", "f", "#", "a", " ", "{", "[", "]", "1"]
        chance = random.Random(5)
        met = 0
        for _ in range(20_000):
            source = "x = " + "".join(chance.choices([*pieces, "while", ","], k=10)) + " while"
            counted = set()
            for match in script._TOKEN.finditer(source):
                if match.lastgroup == "torn":
                    break
                if match.lastgroup == "token":
                    counted.add(match.start())
            try:
                script.parse(source)
            except SyntaxFault as fault:
                if "reserved keyword" in fault.message:
                    lines = source.split("\n")
                    at = sum(len(line) + 1 for line in lines[: fault.line - 1]) + fault.column - 1
                    self.assertIn(at, counted, source)
                    met += 1
        self.assertGreater(met, 500)


class RunTests(SynchronousTestCase):
    """
    `script.run`.
    """

    def fault(self, source: str, **more: Any) -> Fault:
        fault: Fault = self.assertRaises(Fault, _run, source, **more)
        return fault

    def test_payload_and_print(self) -> None:
        """
        A script reads its payload and prints; emoji and Hebrew stay what they are.
        """
        payload = {"cards": [{"id": 7, "title": "👨‍👩‍👧 → שלום"}], "none": None, "price": 1.5}
        printed = _run(
            "card = payload['cards'][0]\n"
            "print(card['id'], card['title'], payload['none'], payload['price'], sep='|')\n"
            "print([True], struct(a = 1), lambda: 1)\n"
            "print(json.encode({'a': [1]}))",
            payload,
        )
        self.assertEqual(
            printed.split("\n"),
            [
                "7|👨‍👩‍👧 → שלום|None|1.5",
                "[True] struct(a=1) script.star.lambda",
                '{"a":[1]}',
            ],
        )

    def test_each_method_of_the_api(self) -> None:
        """
        Each method reaches the caller with its path and body; the answer has status, json, text.
        """
        printed = _run(
            "for call in (api.get, api.post, api.put, api.patch, api.delete):\n"
            "    answer = call('/cards', json = {'a': 1})\n"
            "    print(answer.status, answer.text, answer.json['method'], answer.json['body'])\n"
            "print(api.get('/x').json['body'])"
        )
        methods = ("GET", "POST", "PUT", "PATCH", "DELETE")
        self.assertEqual(
            printed, "\n".join(f'200 ok {each} {{"a": 1}}' for each in methods) + "\nNone"
        )

    def test_an_error_says_where(self) -> None:
        """
        A script that fails is told with its message and the line that failed.
        """
        fault = self.fault("def f(x):\n    return x.title\n\nf(1)\n")
        self.assertNotIsInstance(fault, SyntaxFault)
        self.assertEqual((fault.line, fault.column), (2, 12))
        self.assertEqual(fault.message, "Object of type `int` has no attribute `title`")

    def test_a_script_cannot_forge_the_place(self) -> None:
        """
        What a script says when it fails does not pass for a place in it.
        """
        fault = self.fault(r"fail('oh\n --> script.star:99:9\nerror: no')")
        self.assertEqual((fault.line, fault.column), (1, 1))
        self.assertEqual(fault.message, "fail: oh\n --> script.star:99:9\nerror: no")

    def test_a_failed_call_is_placed_in_the_script(self) -> None:
        """
        A call that cannot be done is told in its own words, with the line of the script.
        """

        def send(*_: Any) -> dict[str, Any]:
            raise CallFailed("the API is away")

        fault = self.fault("def f():\n    return api.get('/x')\n\nf()", send=send)
        self.assertEqual((fault.message, fault.line), ("the API is away", 2))

    def test_what_is_no_json_is_not_sent(self) -> None:
        """
        A body that JSON cannot express fails the script where it calls.
        """
        fault = self.fault("x = 1\napi.post('/x', json = {'a': lambda: 1})")
        self.assertEqual(fault.line, 2)

    def test_other_errors_come_out_as_they_are(self) -> None:
        """
        An error of the executor inside a call is not a fault of the script.
        """
        for error in (MemoryError(), ZeroDivisionError("ours"), SystemExit(1), KeyboardInterrupt()):

            def send(*_: Any, error: BaseException = error) -> dict[str, Any]:
                raise error

            try:
                _run("api.get('/x')", send=send)
            except BaseException as raised:
                self.assertIs(raised, error)
            else:
                self.fail("nothing was raised")

    def test_the_wall_before_a_call_has_begun(self) -> None:
        """
        SystemExit at the very entry of a function a script calls, where nothing can catch it, ends
        the worker all the same: the signal of the wall arrives when it wants.
        """

        def arrive(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_name == "remembering":
                sys.setprofile(None)
                raise SystemExit(1)

        sys.setprofile(arrive)
        try:
            self.assertRaises(SystemExit, _run, "print(1)")
        finally:
            sys.setprofile(None)

    def test_a_loop_ends_at_its_limit(self) -> None:
        """
        A loop that only computes is ended once its time is over, and says so.
        """
        asked = []

        def over() -> str | None:
            asked.append(1)
            return "time is over" if len(asked) > 3 else None

        fault = self.fault("def f():\n  for i in range(1000000000):\n    pass\nf()", over=over)
        self.assertEqual((fault.message, fault.line), ("time is over", 2))

    def test_a_slow_loop_ends_at_its_limit(self) -> None:
        """
        A loop whose iterations are slow is ended before the next call, not 500 iterations later.
        """
        calls: list[str] = []

        def send(_method: str, path: str, _body: Any) -> dict[str, Any]:
            calls.append(path)
            return _answer(_method, path, _body)

        fault = self.fault(
            "for i in range(10):\n    api.get('/%d' % i)",
            send=send,
            over=lambda: "time is over" if len(calls) >= 2 else None,
        )
        self.assertEqual((fault.message, calls), ("time is over", ["/0", "/1"]))

    def test_a_payload_too_deep_to_hand_over(self) -> None:
        """
        A payload that the interpreter cannot take is an error of the executor, not a crash.
        """
        deep: list[Any] = []
        for _ in range(5000):
            deep = [deep]
        self.assertRaises(ValueError, _run, "x = payload", deep)

    def test_recursion_ends(self) -> None:
        """
        Endless recursion is a fault of the script.
        """
        self.assertIn("overflow", self.fault("def f(x):\n  return f(x)\nf(1)").message)


class ReadJsonTests(SynchronousTestCase):
    """
    `script.read_json`.
    """

    def test_what_is_read_can_be_handed_over(self) -> None:
        """
        Every value that is read reaches the script.
        """
        for text in ('{"a": [1, 2.5, null, true, "x"]}', '"\\ud83d\\ude00 \\ud83d"', "1e300"):
            _run("print(payload)", script.read_json(text))
        self.assertEqual(script.read_json('"\\ud83d\\ude00 \\ud83d \\\\ud8"'), "😀 ? \\ud8")

    def test_what_a_script_cannot_take_is_not_json(self) -> None:
        """
        NaN, infinities and what is nested too deeply are refused as any other text.
        """
        for text in ("NaN", "[-Infinity]", "1e999", "[" * 100_000, "", "{", "1" * 5000):
            self.assertRaises(ValueError, script.read_json, text)


class InterpreterTests(SynchronousTestCase):
    """
    What we rely on in starlark-pyo3.
    """

    def test_loops_are_asked_about_rarely(self) -> None:
        """
        The interpreter asks whether to go on only once in hundreds of iterations; this is why
        calls ask as well. If this fails, it asks more often and that may go.
        """
        asked = []

        def cancelled() -> bool:
            asked.append(1)
            return False

        module = starlark.Module()
        options = starlark.EvalOptions(check_cancelled=cancelled)
        source = "def f():\n  for i in range(100):\n    pass\nf()"
        starlark.eval_with(options, module, script.parse(source), script._GLOBALS)
        self.assertEqual(asked, [])
