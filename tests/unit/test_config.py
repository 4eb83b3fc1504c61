"""
Configuration: sources, precedence, and what a person is told.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.fernet import Fernet
from twisted.trial.unittest import SynchronousTestCase

from crq.config import Config
from crq.configfile import ConfigError, build, load
from crq.sealing import sha256_hex


class ConfigTests(SynchronousTestCase):
    """
    One configuration from three sources.
    """

    def file(self, text: str) -> str:
        path = Path(self.mktemp())
        path.write_text(text)
        return str(path)

    def test_later_sources_win(self) -> None:
        """
        The environment wins over the file, the command line over both.
        """
        path = self.file("[limits]\nin_flight = 5\nper_account = 3\nqueued_total = 900\n")
        config = load(
            path,
            {"CRQ_LIMITS_IN_FLIGHT": "6", "CRQ_LIMITS_PER_ACCOUNT": "4", "HOME": "/"},
            ["limits.in_flight=7"],
        )
        limits = config.limits
        self.assertEqual((limits.in_flight, limits.per_account, limits.queued_total), (7, 4, 900))

    def test_defaults_fit_together(self) -> None:
        """
        Without any source the defaults are a valid whole.
        """
        self.assertEqual(load(None, {}), Config())

    def test_paths_of_a_file_are_relative_to_it(self) -> None:
        """
        A relative path means the same wherever the program is started.
        """
        path = self.file('[database]\nurl = "sqlite:///queue.db"\n[executor]\nlock_dir = "locks"\n')
        folder = Path(path).absolute().parent
        config = load(path, {})
        self.assertEqual(config.open_database().path, str(folder / "queue.db"))
        self.assertEqual(config.executor.lock_dir, str(folder / "locks"))

    def test_a_list_comes_from_text_too(self) -> None:
        """
        A list in the environment is separated by commas.
        """
        config = load(None, {"CRQ_GATES_SERVERS": "a:1,b:2", "CRQ_GATES_BACKEND": "memcached"})
        self.assertEqual(config.gates.servers, ("a:1", "b:2"))

    def test_faults_name_the_option_and_the_remedy(self) -> None:
        """
        Each fault says which option, what is wrong and what to do.
        """
        for tree, told in (
            ({"limits": {"in_fligt": 1}}, "limits.in_fligt.*did you mean limits.in_flight"),
            ({"limit": {}}, "limit: there is no such option; did you mean limits"),
            ({"limits": {"in_flight": "4"}}, "limits.in_flight: '4' is not a whole number"),
            ({"limits": {"in_flight": True}}, "limits.in_flight: True is not a whole number"),
            ({"limits": {"in_flight": 0}}, "limits.in_flight: 0 is out of range"),
            ({"limits": {"in_flight": 1}}, "limits.per_account: 2 is above limits.in_flight"),
            (
                {"limits": {"queued_per_account": 5000}},
                "limits.queued_per_account: 5000 is above limits.queued_total",
            ),
            ({"limits": 4}, r"limits: is a section; write \[limits\]"),
            ({"gates": {"backend": "redis"}}, "gates.backend: 'redis' is not one of"),
            ({"gates": {"backend": "memcached"}}, "gates.servers: empty; name a server"),
            ({"gates": {"servers": ["nowhere"]}}, "gates.servers: 'nowhere' is no address"),
            ({"gates": {"servers": "a:1"}}, "gates.servers: must be a list of texts"),
            ({"gates": {"prefix": "with space"}}, "gates.prefix: 'with space' is no prefix"),
            ({"gates": {"prefix": "umläut"}}, "gates.prefix"),
            ({"gates": {"prefix": "x" * 240}}, "gates.prefix"),
            ({"drainer": {"drain_limit": 90.0}}, "drainer.drain_limit: 90 is above drainer.stop"),
            ({"drainer": {"tick": float("nan")}}, "drainer.tick: nan is no usable number"),
            ({"executor": {"deadline": 300}}, "executor.deadline: 300 is not above executor.wall"),
            ({"executor": {"url": "ftp://x"}}, "executor.url: 'ftp://x' is no http URL"),
            ({"executor": {"url": "http://me:pw@x"}}, "executor.url: .*must not carry a password"),
            ({"reaper": {"queued_limit": 3600}}, "reaper.queued_limit: 3600 is under a day"),
            ({"reaper": {"running_limit": 300}}, "reaper.running_limit: 300 is not above"),
            ({"database": {"url": "postgres://x/y"}}, "database.url: the URL must begin with"),
            ({"tokens": [{"name": "a"}]}, "tokens.sha256: is missing"),
            ({"tokens": [{"name": "a", "sha256": "12"}]}, "tokens.sha256: is no SHA-256"),
            (
                {"tokens": [{"name": "a", "sha256": "0" * 64, "scopes": ["all"]}]},
                "tokens.scopes: .*known scopes are",
            ),
            ({"tokens": {"name": "a"}}, r"tokens: write each token as a table: \[\[tokens\]\]"),
        ):
            with self.assertRaisesRegex(ConfigError, f"^{told}"):
                build(tree)

    def test_faults_of_the_other_sources_name_them(self) -> None:
        """
        A typo in a variable or a flag is refused, not ignored.
        """
        for environment, settings, told in (
            ({"CRQ_LIMITS_FLIGHT": "1"}, [], "limits.flight: there is no such option"),
            ({"CRQ_NOPE_X": "1"}, [], "CRQ_NOPE_X: there is no section 'nope'"),
            ({"CRQ_LIMITS_IN_FLIGHT": "four"}, [], "limits.in_flight .*'four' is not a number"),
            ({}, ["limits.in_flight"], "write it as section.name=value"),
            ({}, ["tokens.name=x"], "there is no section 'tokens'"),
        ):
            with self.assertRaisesRegex(ConfigError, told):
                load(None, environment, settings)

    def test_files_that_cannot_be_read(self) -> None:
        """
        A missing file and one that is no TOML are told apart.
        """
        with self.assertRaisesRegex(ConfigError, "No such file"):
            load("/nonexistent/crqueue.toml", {})
        with self.assertRaisesRegex(ConfigError, "is not TOML"):
            load(self.file("limits = [\n"), {})

    def test_secrets_must_be_there(self) -> None:
        """
        A missing, empty or wrong salt or sealing key is refused by name, without repeating it.
        """
        empty, salt = self.file(""), self.file("pepper\n")
        for secrets, told in (
            ({}, "secrets.salt_file: not set"),
            ({"salt_file": empty}, "secrets.salt_file: .* is empty"),
            ({"salt_file": "/nonexistent"}, "secrets.salt_file: .* cannot be read"),
            ({"salt_file": salt}, "secrets.seal_keys_file: not set"),
            ({"salt_file": salt, "seal_keys": "nonsense"}, "secrets: "),
        ):
            with self.assertRaisesRegex(ValueError, f"^{told}") as caught:
                build({"secrets": secrets}).sealer()
            self.assertNotIn("nonsense", str(caught.exception))

    def test_the_hash_of_a_key_is_the_php_sides_choice(self) -> None:
        """
        Salted unless PHP cannot know the salt; accounts are salted in any case.
        """
        secrets = {"salt": "pepper", "seal_keys": Fernet.generate_key().decode("ascii")}
        salted = build({"secrets": secrets}).sealer()
        plain = build({"secrets": secrets, "gates": {"key_hash": "plain"}}).sealer()
        self.assertEqual(salted.key("k"), sha256_hex("pepperk"))
        self.assertEqual(plain.key("k"), sha256_hex("k"))
        self.assertEqual(plain.account("acme"), salted.account("acme"))
        with self.assertRaisesRegex(ConfigError, "gates.key_hash: 'md5' is not one of"):
            build({"gates": {"key_hash": "md5"}})

    def test_the_contract_of_the_executor(self) -> None:
        """
        Unknown words, and options of the other contract, are refused with a remedy.
        """
        plain: dict[str, object] = {"contract": "plain"}
        for executor, told in (
            ({"contract": "http"}, "executor.contract: 'http' is not one of fenced, plain"),
            ({"send_apikey": True}, 'executor.send_apikey: is for executor.contract = "plain"'),
            ({"token_file": "t"}, 'executor.token_file: is for executor.contract = "plain"'),
        ):
            with self.assertRaisesRegex(ConfigError, told):
                build({"executor": executor})
        with self.assertRaisesRegex(
            ConfigError, r"reaper.running_limit: 900 is not above executor.deadline \(900\)"
        ):
            build({"executor": {**plain, "deadline": 900.0}})
        self.assertEqual(build({"executor": {"deadline": 900.0}}).executor.deadline, 900)
        self.assertEqual(build({"executor": plain}).executor.token(), "")

    def test_the_token_of_an_endpoint(self) -> None:
        """
        It comes from a file beside the configuration; a missing, empty or odd one is refused by
        name, without repeating it.
        """
        token = self.file("s3cret\n")
        path = self.file('[executor]\ncontract = "plain"\ntoken_file = "missing"\n')
        missing = Path(path).absolute().parent / "missing"
        with self.assertRaisesRegex(ValueError, f"executor.token_file: {missing} cannot be read"):
            load(path, {}).executor.token()
        executor: dict[str, object] = {"contract": "plain", "token_file": token}
        self.assertEqual(build({"executor": executor}).executor.token(), "s3cret")
        for text, told in (("", "is empty"), ("two words", "is no token"), ("ümlaut", "is no tok")):
            executor["token_file"] = self.file(text)
            with self.assertRaisesRegex(ValueError, f"executor.token_file: .*{told}") as caught:
                build({"executor": executor}).executor.token()
            self.assertNotIn("words", str(caught.exception))

    def test_waits_have_bounds(self) -> None:
        """
        A shortest wait of nothing would be a tight loop.
        """
        for name, value in (("shortest_wait", 0), ("margin", -1.0), ("margin", 601.0)):
            with self.assertRaisesRegex(ConfigError, f"gates.{name}: .* is out of range"):
                build({"gates": {name: value}})
