"""logs: one record is one line, whatever a value contains."""

import json
import logging

from pgrole_controller.logs import _Json, _Text


def record(message: str, **values: object) -> logging.LogRecord:
    made = logging.LogRecord("pgrole_controller.x", logging.INFO, __file__, 1, message, (), None)
    vars(made).update(values)
    return made


def test_text_stays_on_one_line_and_tells_values_from_words() -> None:
    line = _Text(colours=False).format(record("role brought in", object="shop/app", note='a\nb="c"'))
    assert line.count("\n") == 0
    assert line.endswith(r'role brought in  object=shop/app note="a\nb=\"c\""')


def test_json_is_one_object_a_line() -> None:
    line = _Json().format(record("role brought in", object="shop/app", note="a\nb", count=3))
    assert line.count("\n") == 0
    said = json.loads(line)
    assert (said["message"], said["object"], said["note"], said["count"]) == ("role brought in", "shop/app", "a\nb", 3)
