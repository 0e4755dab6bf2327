"""ending.py: how a command ends, whatever fails."""

import io

import pytest

from pgrole_controller.ending import (
    FAILED,
    INTERRUPTED,
    UNREAD,
    describe_unexpected,
    end,
    escape_unencodable,
    make_printable,
)


def _raise(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KeyboardInterrupt(), INTERRUPTED, ""),
        (BrokenPipeError(), UNREAD, ""),
        (OSError(28, "No space left on device"), FAILED, "No space left on device"),
        (OSError(13, "Permission denied", "/etc/\x1bx"), FAILED, "Permission denied: '/etc/\\x1bx'"),
        (ValueError("s3cret"), FAILED, "unexpected error: ValueError in test_ending.py:"),
        (OSError(98, "In use (while attempting to bind on address ('::', 80))"), FAILED, "pgrole-controller: In use\n"),
        (ExceptionGroup("s3cret", [TypeError("s3cret")]), FAILED, "unexpected error: TypeError"),
        (ExceptionGroup("", [ExceptionGroup("", [BrokenPipeError()])]), UNREAD, ""),
        (ExceptionGroup("", [OSError(17, "File exists", "/x")]), FAILED, "pgrole-controller: File exists: '/x'\n"),
    ],
)
def test_an_error_is_printed_on_one_line_without_secrets(
    error: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end(lambda: _raise(error)) == code
    shown = capsys.readouterr().err
    assert text in shown
    assert shown.count("\n") == bool(text)
    assert "s3cret" not in shown


def test_a_traceback_is_printed_at_log_level_debug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGROLE_LOG_LEVEL", "debug")
    assert end(lambda: _raise(ValueError("why"))) == FAILED
    assert "Traceback" in capsys.readouterr().err


def test_an_exception_group_is_located_by_its_first_error() -> None:
    with pytest.raises(ValueError, match="why") as raised:
        _raise(ValueError("why"))
    assert "test_ending.py" in describe_unexpected(ExceptionGroup("", [raised.value]))


def test_control_characters_and_lone_surrogates_are_escaped() -> None:
    assert make_printable("a\x1b\u202e\udcff\n") == "a\\x1b\\u202e\\udcff\\n"


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", "* ok, a -> b..., \\xfc \\U0001f418 \\udcff"),
        ("latin-1", "* ok, a -> b..., ü \\U0001f418 \\udcff"),
        ("utf-8", "✓ ok, a → b…, ü 🐘 \\udcff"),
    ],
)
def test_signs_that_an_encoding_lacks_are_written_in_ascii_and_names_escaped(encoding: str, shown: str) -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding=encoding)
    escape_unencodable(stream)
    stream.write("✓ ok, a → b…, ü 🐘 \udcff")
    stream.flush()
    assert written.getvalue().decode(encoding) == shown
