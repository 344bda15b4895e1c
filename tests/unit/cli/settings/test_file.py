"""`--config FILE`: what a file may say, what wins over it, and what is refused."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tests.support.documentation import TEXTS
from voicemem.cli import main
from voicemem.cli.service import check_config, serve


def check(tmp_path: Path, text: str, *arguments: str, env: dict[str, str] | None = None) -> Result:
    """What `check-config` says of a settings file."""
    path = tmp_path / "voicemem.toml"
    path.write_text(text)
    return CliRunner().invoke(main, ["check-config", "--config", str(path), *arguments], env=env)


def shown(result: Result) -> dict[str, str]:
    """The settings that were shown, by name."""
    assert 0 == result.exit_code, result.output
    return dict(re.findall(r"^([\w-]+) +(.+)$", result.output, re.MULTILINE))


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(tmp_path: Path) -> None:
    """Each of the three sets what the ones before it leave, and what is shown says which it was."""
    text = 'rest = "127.0.0.1:1001"\ningest = "127.0.0.1:1002"\nstore = "memory:"\n'
    env = {"VOICEMEM_REST": "127.0.0.1:2001", "VOICEMEM_INGEST": "127.0.0.1:2002"}
    settings = shown(check(tmp_path, text, "--rest", "127.0.0.1:3001", env=env))
    assert "127.0.0.1:3001  (from the flag)" == settings["rest"]
    assert "127.0.0.1:2002  (from the environment)" == settings["ingest"]
    assert "memory:  (from the file)" == settings["store"]
    assert "512" == settings["memory-budget"]


def test_the_variable_names_the_file(tmp_path: Path) -> None:
    """VOICEMEM_CONFIG is the flag's variable, as that of every setting."""
    path = tmp_path / "own.toml"
    path.write_text('store = "memory:"')
    result = CliRunner().invoke(main, ["check-config"], env={"VOICEMEM_CONFIG": str(path)})
    assert "memory:  (from the file)" == shown(result)["store"]


VALUES = [
    ('allow-address = ["10.0.0.0/8", "192.168.0.0/16"]', "allow-address", "10.0.0.0/8, 192.168.0.0/16"),
    ("request_rate = 5", "request-rate", "5.0"),
    ("insecure = true", "insecure", "on"),
    ('ui = "off"', "ui", "off"),
    ("ui = false", "ui", "off"),
    ("ui = true", "ui", "on"),
    ('redact = ["cards", "otp"]', "redact", "cards, otp"),
    ('redact = "cards,otp"', "redact", "cards, otp"),
    ('memories-ttl = {episode = "90d"}', "memories-ttl", "episode=90d"),
    ('[model-window]\n"my.model" = 1000', "model-window", "my.model=1000"),
    ('admin-key = "hunter2 hunter2 hunter2"', "admin-key", "(set)"),
    ('memory = {policy = "window", max_tokens = 9}', "memory", '{"policy": "window", "max_tokens": 9}'),
]


@pytest.mark.parametrize(("text", "name", "value"), VALUES, ids=[text for text, _, _ in VALUES])
def test_values_have_the_forms_of_toml(tmp_path: Path, text: str, name: str, value: str) -> None:
    """Numbers, lists and tables are written as such, and secrets are not shown."""
    assert f"{value}  (from the file)" == shown(check(tmp_path, text))[name]


def test_every_name_that_is_shown_is_one_that_the_file_takes(tmp_path: Path) -> None:
    """So that a line of `check-config` can be looked up, and set, by its name."""
    for name in shown(check(tmp_path, 'store = "memory:"')).keys() - {"The"}:  # The settings are valid.
        assert "there is no setting" not in check(tmp_path, f"{name} = {{}}").output, name


REFUSED = [
    ("stor = 'memory:'", "there is no setting `stor` (did you mean `store`?)\n"),
    ("[server]\nrest = 'hunter2'", "there is no setting `server`"),
    ("config = 'hunter2'", "there is no setting `config`"),
    ("log_level = 'info'\nlog-level = 'info'", "`log-level` is there twice."),
    ("store = 5", "`store` must be a text."),
    ("memory_budget = 'hunter2'", "`memory_budget` must be a whole number."),
    ("memory-budget = true", "`memory-budget` must be a whole number."),
    ("insecure = 1", "`insecure` must be true or false."),
    ("request-rate = 'hunter2'", "`request-rate` must be a number."),
    ("policy = 'a=b:C'", "`policy` must be a list of texts, or a table."),
    ("store = = 'hunter2'", "cannot be read: Invalid value (at line 1, column 9)"),
    ("admin-key = 'hunter2'", "at least 16 characters"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED, ids=[text for text, _ in REFUSED])
def test_what_is_wrong_is_said_in_one_sentence_that_quotes_no_value(tmp_path: Path, text: str, said: str) -> None:
    """Nothing is passed over, and a secret is not shown because of a mistake beside it."""
    result = check(tmp_path, text)
    assert (1, 1) == (result.exit_code, result.output.count("\n"))
    assert said in result.output
    assert "hunter2" not in result.output


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A service that started without its settings would be another one."""
    result = CliRunner().invoke(main, ["serve", "--config", str(tmp_path / "none.toml")])
    assert (1, True) == (result.exit_code, "cannot be read" in result.output)


def test_the_file_of_the_page_is_one(tmp_path: Path) -> None:
    """What docs/operations.md shows can be used, but for its folder."""
    (text,) = re.findall(r"```toml\n(.*?)```", TEXTS["operations.md"], re.DOTALL)
    settings = shown(check(tmp_path, text.replace("/var/lib/voicemem/", f"{tmp_path}/")))
    assert 8 == sum(value.endswith("(from the file)") for value in settings.values())


def test_both_commands_take_the_same() -> None:
    """`check-config` sees what `serve` would."""

    def flags(command: click.Command) -> list[tuple[str | None, object]]:
        return [(option.name, option.envvar) for option in command.params]

    assert flags(serve) == flags(check_config)


def test_a_choice_is_refused_by_the_name_that_the_file_has(tmp_path: Path) -> None:
    """And with what it may be, whatever was given."""
    for value in ('"loud"', "true", "5", "{}"):
        result = check(tmp_path, f"log_level = {value}")
        assert (1, True) == (
            result.exit_code,
            "`log_level` must be one of debug, info, warning, error." in result.output,
        )


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    """Without numbers and names of Python's."""
    broken, deep = tmp_path / "broken.toml", tmp_path / "deep.toml"
    broken.write_bytes(b"\xff")
    deep.write_bytes(b"store = " + 5_000 * b"[")
    for path, why in (
        (tmp_path / "none.toml", "No such file or directory."),
        (tmp_path, "Is a directory."),
        (broken, "it is not in UTF-8."),
        (deep, "it nests too deeply."),
    ):
        result = CliRunner().invoke(main, ["check-config", "--config", str(path)])
        assert (1, f"voicemem: The settings file {path} cannot be read: {why}\n") == (result.exit_code, result.output)


def test_a_mark_at_the_beginning_is_no_setting(tmp_path: Path) -> None:
    """Some editors write U+FEFF there."""
    assert "memory:  (from the file)" == shown(check(tmp_path, '\ufeffstore = "memory:"'))["store"]
