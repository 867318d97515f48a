"""The table of flags: what each may be, errors for others, how blocks restore."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gtensor.memory import allocators
from gtensor.settings import FLAGS, Settings, settings


def in_a_new_process(**environment: str) -> subprocess.CompletedProcess[str]:
    """Import gtensor with these variables and print the source of a CUDA device's segments."""
    return subprocess.run(
        [sys.executable, "-c",
         "from gtensor.settings import settings; print(settings.cuda_source)"],
        capture_output=True, check=False, text=True, env={**os.environ, **environment},
        cwd=Path(__file__).parents[1])


def test_a_flag_may_be_a_text_with_choices():
    assert in_a_new_process(GTENSOR_CUDA_SOURCE="virtual").stdout == "virtual\n"


@pytest.mark.parametrize("variable,text,sentence", [
    ("GTENSOR_CUDA_SOURCE", "shared", "GTENSOR_CUDA_SOURCE='shared' given; wanted one of "
                                      "'cudamalloc', 'virtual', 'async'"),
    ("GTENSOR_CUDA_SOURCE", "", "GTENSOR_CUDA_SOURCE='' given; wanted one of 'cudamalloc', "
                                "'virtual', 'async'"),
    ("GTENSOR_DEBUG", "much", "GTENSOR_DEBUG='much' given; wanted an integer"),
])
def test_a_wrong_variable_is_one_sentence_at_import(variable, text, sentence):
    said = in_a_new_process(**{variable: text})
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1] == f"ValueError: {sentence}"


def test_a_wrong_value_is_refused_and_nothing_is_changed():
    own = Settings()
    with (pytest.raises(ValueError, match=r"settings.cuda_source = 'shared' given; wanted one of"),
          own.override(debug=2, cuda_source="shared")):
        pass
    with pytest.raises(ValueError, match=r"settings.debug = 1.5 given; wanted an integer"):
        own.debug = 1.5
    with pytest.raises(TypeError, match="unknown setting 'sauce'; wanted one of debug, "):
        own.override(sauce=1).__enter__()
    assert own == Settings()


def test_a_block_restores_what_was():
    own = Settings(cuda_source="async")
    with own.override(cuda_source="virtual", debug=1):
        assert (own.cuda_source, own.debug) == ("virtual", 1)
    assert own == Settings(cuda_source="async")


def test_the_table_shows_every_flag_its_value_and_its_choices():
    rows = settings.describe().splitlines()
    assert [row.split()[0] for row in rows] == ["GTENSOR_" + name.upper() for name in FLAGS]
    row = next(row for row in rows if "CUDA_SOURCE" in row)
    assert row.split()[1] == settings.cuda_source
    assert row.endswith("(cudamalloc, virtual, async)")


def test_the_choices_are_the_sources_that_a_cuda_device_has():
    for source in allocators._CUDA:
        Settings(cuda_source=source)
    with pytest.raises(ValueError) as refused:
        Settings(cuda_source="")
    assert str(refused.value).endswith(", ".join(map(repr, allocators._CUDA)))
