"""`serve` and `check-config`, run as commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tests.support.rows import every_row
from voicemem.cli import main
from voicemem.cli.service import serve
from voicemem.cli.service_settings import FormerFlag

PREPARED = """
import gc, logging, click
from voicemem.cli.service import YOUNG_S, prepare_process, serve
prepare_process(click.Context(serve), logging.getLogger(), {"log_format": "text", "log_level": "warning"})
before = gc.get_count()[2]
gc.collect(1)
print(gc.get_threshold()[2] / (gc.get_count()[2] - before) * YOUNG_S)
"""


def test_full_collections_are_rare() -> None:
    """Collecting young objects all the time brings no full collection, which holds up every ack, within a day."""
    seconds = float(subprocess.run([sys.executable, "-c", PREPARED], capture_output=True, text=True, check=True).stdout)
    assert seconds >= 86_400


def check_config(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["check-config", *arguments], env=env)


def test_good_settings_are_shown_without_secrets() -> None:
    """check-config prints what serve would use; of secrets only that they are set."""
    result = check_config("--webhook-url", "https://x.example/", "--webhook-secret", "geheim", "--store", "memory:")
    assert result.exit_code == 0
    assert "https://x.example/" in result.output
    assert "geheim" not in result.output


@every_row(
    "arguments",
    [
        ["--store", "mysql://x"],
        ["--rest", "8080"],
        ["--ingest", "127.0.0.1:99999"],
        ["--webhook-url", "ftp://x"],
        ["--webhook-secret", "x"],
        ["--admin-key", "short"],
        ["--ram-limit-mib", "0"],
        ["--allow-address", "10.0.0.0/99"],
        ["--store", "sqlite:/nowhere/at/all/x.db"],
        ["--store", "sqlite:/tmp"],
        ["--rest", "127.0.0.1:8080", "--ingest", "127.0.0.1:8080"],
        ["--rest", "127.0.0.1:8080", "--ingest", "0.0.0.0:8080", "--insecure"],
        ["--webhook-url", "https://x.example/", "--webhook-secret", "whsec_notbase64"],
        ["--store", "memory:", "--rest", "0.0.0.0:8080"],
        ["--llm-url", "http://u:hunter2@h/v1"],
        ["--llm-url", "http://h/v1", "--llm-api-key", "hunter2\n"],
    ],
    ids=" ".join,
)
def test_bad_settings_are_one_sentence_and_exit_code_1(arguments: list[str]) -> None:
    """Each setting that cannot be is refused before anything starts."""
    result = check_config(*arguments)
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert "hunter2" not in result.output


@pytest.mark.parametrize(
    "variables",
    [
        {"VOICEMEM_WEBHOOK_CONTENTS": "standard"},
        {"VOICEMEM_WEBHOOK_URL": "https://x.example/", "VOICEMEM_WEBHOOK_CONTENTS": "some"},
        {"VOICEMEM_AGORA_CONTENTS": "some"},
        {"VOICEMEM_LLM_TIMEOUT": "0"},
        {"VOICEMEM_LLM_TOTAL_TIMEOUT": "0"},
    ],
    ids=str,
)
def test_bad_settings_without_a_flag_are_one_sentence_and_exit_code_1(variables: dict[str, str]) -> None:
    """Their variables are checked as flags are."""
    result = check_config(env=variables)
    assert (result.exit_code, result.output.count("\n")) == (1, 1)


def test_flags_that_are_gone_say_where_the_setting_is() -> None:
    """A renamed flag names the new one, and a removed one its key and variable; both in one sentence."""
    flags = [option for option in serve.params if isinstance(option, click.Option) and not option.hidden]
    assert len(flags) <= 25
    new_names = {
        "--memory": "--context",
        "--memory-budget": "--ram-limit-mib",
        "--memories-budget": "--extraction-tokens-per-day",
        "--memories-ttl": "--memory-retention",
    }
    for old, new in new_names.items():
        result = check_config(old, "1")
        assert (result.exit_code, result.output) == (1, f"voicemem: {old} is now called {new}.\n")
    removed = [option for option in serve.params if isinstance(option, FormerFlag) and option.expose_value]
    assert len(removed) == 27
    for option in removed:
        flag = option.opts[0]
        sentence = f"voicemem: {flag} is now set in the settings file as {flag[2:]}, or as {option.envvar}.\n"
        result = check_config(flag, "1")
        assert (result.exit_code, result.output) == (1, sentence)


def test_a_password_in_an_url_is_not_shown() -> None:
    """A receiver may want one; no one else is to see it."""
    result = check_config("--webhook-url", "https://u:hunter2@hooks.example/x")
    assert (result.exit_code, "hunter2" in result.output) == (0, False)
    assert "https://hooks.example/x" in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rest", "0.0.0.0:8080"], True),
        (["--ingest", "[::]:8765"], True),
        (["--rest", "0.0.0.0:8080", "--insecure"], False),
        (["--rest", "0.0.0.0:8080", "--admin-key", "sixteen letters."], False),
        (["--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0"], False),
    ],
)
def test_what_only_serve_can_tell_is_said(arguments: list[str], told: bool) -> None:
    """Whether a key is in the store is not looked at; beyond loopback that is said."""
    result = check_config(*arguments)
    assert (result.exit_code, "only `serve` can tell" in result.output) == (0, told)


def test_environment_variables_set_what_flags_do_not() -> None:
    """VOICEMEM_… gives a setting; a flag goes before it."""
    env = {"VOICEMEM_REST": "127.0.0.1:1234", "VOICEMEM_ALLOW_ADDRESS": "10.0.0.0/8 192.168.0.0/16"}
    assert "127.0.0.1:1234" in check_config(env=env).output
    assert "10.0.0.0/8, 192.168.0.0/16" in check_config(env=env).output
    assert "standard" in check_config(env={"VOICEMEM_AGORA_CONTENTS": "standard"}).output
    assert "127.0.0.1:1234" not in check_config("--rest", "127.0.0.1:4321", env=env).output


def test_help_names_every_command() -> None:
    """`voicemem --help` shows where to begin."""
    output = CliRunner().invoke(main, ["--help"]).output
    assert "demo" in output.split("Commands:")[0]
    assert set(main.commands) <= set(re.findall(r"^  ([a-z-]+)", output, re.MULTILINE))


def test_a_misspelt_variable_is_refused_with_the_nearest() -> None:
    """A setting from the environment must not be ignored because of its spelling."""
    result = check_config("--store", "memory:", env={"VOICEMEM_LOGLEVEL": "s3cret"})
    assert result.exit_code == 1
    assert "no setting `VOICEMEM_LOGLEVEL` (did you mean `VOICEMEM_LOG_LEVEL`?).\n" in result.output
    assert "s3cret" not in result.output


@every_row(
    ("name", "right"),
    [
        ("VOICEMEM_STROE", "VOICEMEM_STORE"),
        ("VOICEMEM_REDACTION", "VOICEMEM_REDACT"),
        ("VOICEMEM_CONTEXT", "VOICEMEM_MEMORY"),
        ("VOICEMEM_MEMORY_RETENTION", "VOICEMEM_MEMORIES_TTL"),
        ("VOICEMEM_EXTRACTION_TOKENS_PER_DAY", "VOICEMEM_MEMORIES_BUDGET"),
        ("VOICEMEM_RAM_LIMIT_MIB", "VOICEMEM_MEMORY_BUDGET"),
        ("VOICEMEM_LLM_KEY", "VOICEMEM_LLM_API_KEY"),
    ],
)
def test_a_variable_called_like_a_setting_or_a_flag_is_refused_with_the_right_name(name: str, right: str) -> None:
    """Else a service would run without what someone believes to have set."""
    result = check_config("--store", "memory:", env={name: "5"})
    assert (result.exit_code, f"no setting `{name}` (did you mean `{right}`?)" in result.output) == (1, True)


@every_row(
    ("key", "says"),
    [
        ("ram-limit-mib", "`ram-limit-mib` is `memory-budget` in the file."),
        ("context", "`context` is `memory` in the file."),
        ("extraction-tokens-per-day", "`extraction-tokens-per-day` is `memories-budget` in the file."),
        ("memory_retention", "`memory_retention` is `memories-ttl` in the file."),
        ("memory-retentoin", "no setting `memory-retentoin` (did you mean `memories-ttl`?)"),
    ],
)
def test_a_flag_in_the_file_is_refused_with_the_key(tmp_path: Path, key: str, says: str) -> None:
    """Where the two are called differently."""
    file = tmp_path / "voicemem.toml"
    file.write_text(f"{key} = 5\n")
    result = check_config("--config", str(file))
    assert (result.exit_code, says in result.output) == (1, True)


def test_a_context_that_is_no_json_is_named_by_its_flag_and_variable() -> None:
    """With an example."""
    result = check_config("--store", "memory:", "--context", "{x")
    says = "--context (VOICEMEM_MEMORY) must be a JSON object, such as {"
    assert (result.exit_code, says in result.output) == (
        1,
        True,
    )


def test_variables_that_are_no_settings_are_shown_and_do_not_stop_the_service() -> None:
    """An orchestrator makes such variables for a service of this name; those of other commands are known."""
    made = {"VOICEMEM_SERVICE_HOST": "10.0.0.1", "VOICEMEM_PORT_8080_TCP_PROTO": "tcp", "VOICEMEM_URL": "http://h"}
    result = check_config("--store", "memory:", env=made)
    assert result.exit_code == 0
    assert (
        "Ignored, since there is no such setting: VOICEMEM_PORT_8080_TCP_PROTO, VOICEMEM_SERVICE_HOST\n"
        in result.output
    )


def test_the_settings_of_the_observer() -> None:
    """The key is only said to be set; an address is for a dialect that can be observed."""
    url = "openai-realtime=wss://h.example/v1/realtime"
    key, place, store = "VOICEMEM_OBSERVE_KEY", "VOICEMEM_OBSERVE_URL", ("--store", "memory:")
    result = check_config(*store, env={key: "sk-geheim", place: url})
    assert (result.exit_code, url in result.output, "geheim" in result.output) == (0, True, False)
    for wrong in ("wss://h.example/", "vapi=wss://h.example/", "openai-realtime=https://h.example/"):
        assert check_config(*store, env={place: wrong}).exit_code == 1
    assert check_config(*store, env={key: "sk geheim"}).exit_code == 1
