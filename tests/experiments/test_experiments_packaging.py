"""What is said of the project agrees: version, license, types, and files that are named are there."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_one_version_everywhere():
    version = PROJECT["project"]["version"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == version and cited["license"] == PROJECT["project"]["license"]
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("package", ["kvjax", "models", "experiments"])
def test_packages_are_typed_and_say_so_when_installed(package):
    assert (ROOT / package / "py.typed").is_file()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"][package]


def test_contributing_names_what_there_is():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(r"`((?:kvjax|tests|models|experiments|\.ci)(?:/[\w.]+)*/?)`", text))
    assert len(paths) >= 6 and all((ROOT / path).exists() for path in paths), paths
    markers = {line.split(":")[0] for line in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    assert set(re.findall(r"-m (\w+) ", text)) & {"slow", "gpu"} <= markers
    assert f"{PROJECT['tool']['ruff']['line-length']} characters" in text
