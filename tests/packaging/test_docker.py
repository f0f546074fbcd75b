"""The images and the compose file hang together. No Docker is needed: structure, paths and names are checked."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwin.cli import _parser

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("Dockerfile.*"))


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Each instruction with its arguments, comments left out and continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(words[0], words[1].strip()) for line in lines if (words := line.split(None, 1))]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_both_flavours_exist() -> None:
    assert [d.name for d in DOCKERFILES] == ["Dockerfile.cpu", "Dockerfile.cuda13"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda d: d.suffix[1:])
class TestDockerfile:
    def test_begins_with_a_pinned_image(self, dockerfile: Path) -> None:
        first, image = instructions(dockerfile)[0]
        assert first == "FROM"
        assert re.fullmatch(r"[\w./-]+:[\w.-]+", image)
        assert not image.endswith(":latest")

    def test_copies_what_exists_and_all_that_the_wheel_needs(self, dockerfile: Path) -> None:
        copied = {w for name, rest in instructions(dockerfile) if name == "COPY" for w in rest.split()[:-1]}
        assert all((ROOT / c).exists() for c in copied)
        assert copied >= {
            "pyproject.toml",
            "hatch_build.py",
            "README.md",
            "LICENSE",
            "gpuwin",
            "kernels",
            "spark_plugin",
        }

    def test_ends_as_an_ordinary_user_with_an_init(self, dockerfile: Path) -> None:
        found = instructions(dockerfile)
        users = [i for i, (name, _) in enumerate(found) if name == "USER"]
        installs = [i for i, (name, rest) in enumerate(found) if name == "RUN" and "install" in rest]
        assert users
        assert found[users[-1]][1] == "spark"
        assert max(installs) < users[-1]
        assert ("ENTRYPOINT", '["tini", "--"]') in found

    def test_installs_java_and_ps_and_leaves_no_package_lists(self, dockerfile: Path) -> None:
        (apt,) = (rest for name, rest in instructions(dockerfile) if name == "RUN" and "apt-get" in rest)
        assert "--no-install-recommends" in apt
        assert "openjdk-17-jre-headless" in apt
        assert "procps" in apt  # Spark's scripts call ps
        assert "rm -rf /var/lib/apt/lists/*" in apt

    def test_its_command_is_one_that_the_cli_knows(self, dockerfile: Path) -> None:
        (command,) = (yaml.safe_load(rest) for name, rest in instructions(dockerfile) if name == "CMD")
        assert command[0] == "gpuwin"
        assert isinstance(_parser().parse_args(command[1:]), argparse.Namespace)


def test_the_cluster_is_a_master_two_workers_and_the_demo(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {"master", "worker-1", "worker-2", "demo"}
    for name, service in services.items():
        assert service["hostname"] == name
        assert service["volumes"] == ["data:/data"], "checkpoints must be at the same path everywhere"
        assert service["environment"]["TMPDIR"] == "/data"
    assert set(compose["volumes"]) == {"data"}
    master = services["master"]["command"]
    assert master[:2] == ["spark-class", "org.apache.spark.deploy.master.Master"]
    url = f"spark://{master[master.index('--host') + 1]}:{master[master.index('--port') + 1]}"
    for worker in ("worker-1", "worker-2"):
        assert services[worker]["command"][:3] == ["spark-class", "org.apache.spark.deploy.worker.Worker", url]
    command = services["demo"]["command"]
    assert command[:2] == ["gpuwin", "demo"]
    assert _parser().parse_args([*command[1:-1], "cpu"]).master == url
    assert set(services["demo"]["depends_on"]) == {"master", "worker-1", "worker-2"}


def test_the_images_of_the_cluster_are_built_here(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        build = service["build"]
        assert (ROOT / "docker" / build["context"]).resolve() == ROOT
        assert build["dockerfile"] == "docker/Dockerfile.${GPUWIN_FLAVOUR:-cpu}"


@pytest.fixture(scope="module")
def pipeline() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "docker" / "compose.pipeline.yaml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_the_pipeline_runs_the_example_behind_its_broker(pipeline: dict[str, Any]) -> None:
    services = pipeline["services"]
    assert set(services) == {"broker", "fill", "clicks"}
    address = services["broker"]["environment"]["KAFKA_ADVERTISED_LISTENERS"].removeprefix("PLAINTEXT://")
    assert address.partition(":")[0] == services["broker"]["hostname"]
    for name in ("fill", "clicks"):
        python, script, *arguments = services[name]["command"]
        assert (python, script) == ("python", "/examples/kafka_to_delta.py")
        assert arguments[:4] == ["--broker", address, "--topic", "clicks"]
        assert "../examples:/examples:ro" in services[name]["volumes"]
    assert services["fill"]["depends_on"] == {"broker": {"condition": "service_healthy"}}
    assert services["clicks"]["depends_on"] == {"fill": {"condition": "service_completed_successfully"}}
    known = set(re.findall(r'add_argument\("(--[a-z-]+)"', (ROOT / "examples" / "kafka_to_delta.py").read_text()))
    assert {a for name in ("fill", "clicks") for a in services[name]["command"] if a.startswith("--")} <= known


def test_the_pipeline_has_the_packages_of_the_page_for_its_spark(pipeline: dict[str, Any]) -> None:
    clicks = pipeline["services"]["clicks"]
    submitted = clicks["environment"]["PYSPARK_SUBMIT_ARGS"]
    assert f'PYSPARK_SUBMIT_ARGS="{submitted}"' in (ROOT / "docs" / "pipelines.md").read_text()
    argument = next(rest for name, rest in instructions(ROOT / "docker" / "Dockerfile.cpu") if name == "ARG")
    assert argument.startswith("PYSPARK=")
    line = clicks["build"]["args"]["PYSPARK"].removeprefix("pyspark==").removesuffix(".*")
    assert f"delta-spark_{line}_2.13" in submitted
