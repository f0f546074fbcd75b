"""spark-defaults.conf, as Spark reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwin_spark.configure import spark_defaults

TEXT = rb"""# what a f\374r in Latin-1 begins \
spark.first one
! another comment
spark.plugins a.B,\
  c.D
spark.equals = x=y
spark.colon: z
  spark.indented   two words  
spark.none
spark.path /a/b\
"""  # noqa: W291 - the spaces at the end are what is tested


def test_settings_comments_and_lines_that_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark-defaults.conf").write_bytes(TEXT)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert spark_defaults() == {
        "spark.first": "one",
        "spark.plugins": "a.B,c.D",
        "spark.equals": "x=y",
        "spark.colon": "z",
        "spark.indented": "two words",
        "spark.path": "/a/b",
    }


def test_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "none", tmp_path / "file"):
        monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
        assert spark_defaults() == {}
