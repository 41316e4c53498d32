"""Backups, restores and the move to PostgreSQL as the hub's chart runs them, with the scripts of its Jobs."""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from hub.api.certificates import Lifetimes
from hub.api.meta.change import REQUESTS
from hub.replica.keys import create_keys
from machinery.errors import InvalidError
from machinery.runtime.clock import SystemClock
from tests.charts.rendering import MATRIX, ROOT, of_kind, only, render
from tests.fakes.rpc_stage import RpcStage
from tests.programs import STDOUT, command

PROGRAM = f'PYTHONPATH={ROOT} exec {sys.executable} -m hub "$@"'
FAKE = 'for last; do :; done; echo "$*" > "$HUB_DATA_DIR.calls"; touch "$last"'


def job_pod(name: str, kind: str, **values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod of a CronJob or Job, and its volumes by name."""
    spec = only(render("hub", MATRIX["hub"][name] | values), kind)["spec"]
    pod = spec.get("jobTemplate", {"spec": spec})["spec"]["template"]["spec"]
    return pod, {each["name"]: each for each in pod["volumes"]}


async def ran(container: dict[str, Any], folder: Path, hub: str = PROGRAM, **variables: str) -> tuple[int, str]:
    """The script of a container, with folders for its volumes and a program for `hub`."""
    for place in ("bin", "backups", "muster"):
        (folder / place).mkdir(exist_ok=True)
    (folder / "bin" / "hub").write_text(f"#!/bin/sh\n{hub}\n")
    (folder / "bin" / "hub").chmod(0o700)

    def here(text: str) -> str:
        return re.sub(r"/(?=backups)|/var/lib/(?=muster)|/etc/muster/(?=keys)", f"{folder}/", text)

    environment = {each["name"]: here(each["value"]) for each in container["env"] if "value" in each} | variables
    environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    ended = await command(*container["command"], here(container["args"][0]), env=environment, stderr=STDOUT)
    return ended.returncode, ended.stdout


@pytest.mark.postgres
async def test_a_hub_moves_from_sqlite_to_postgresql_and_its_agent_returns_with_its_certificate(
    tmp_path: Path, postgres_url: str
) -> None:
    pod, _ = job_pod("moved", "Job")
    [backup], [restore] = pod["initContainers"], pod["containers"]
    url, folder, keys = {"HUB_DATABASE_URL": postgres_url}, tmp_path / "muster" / "hub", tmp_path / "keys"
    folder.parent.mkdir()
    stage = RpcStage(folder)
    await stage.start()
    agent = await stage.enrol("edge1")
    await (await stage.welcomed(agent)).beat(1)
    before = await stage.records("edge1"), await stage.all(REQUESTS)
    code, output = await ran(backup, tmp_path, **url)
    assert (code != 0, "in use by another hub" in output) == (True, True), "its pod has to end first"
    await stage.stop()

    stage.configure(database_url=SecretStr(postgres_url))
    with pytest.raises(InvalidError, match=r"the database is empty, but the data directory .* of hub b2f1d5a0-"):
        await stage.start_as_it_is()

    assert (await ran(backup, tmp_path, **url))[0] == 0
    create_keys(keys, Lifetimes(), SystemClock().now())
    code, output = await ran(restore, tmp_path, **url)
    assert (code, "made with another secrets.key" in output) == (1, True), "keys of another hub change nothing"
    shutil.rmtree(keys)
    names = [path.name for path in folder.iterdir() if not re.fullmatch(r"(ca.*|secrets|token-.*)\.(crt|key)", path.name)]
    shutil.copytree(folder, keys, ignore=lambda *_: names)
    code, output = await ran(restore, tmp_path, **url)
    assert code == 0, output

    stage.configure(keys_dir=keys)
    await stage.start_as_it_is()
    await (await stage.welcomed(agent)).beat(1)
    assert (await stage.records("edge1"), await stage.all(REQUESTS)) == before
    await asyncio.gather(*(channel.close() for channel in stage.channels))
    await stage.stop()


async def test_backups_are_kept_in_a_claim_or_recorded_once_they_are_elsewhere(tmp_path: Path) -> None:
    pod, volumes = job_pod("backed up", "CronJob", backup={"enabled": True, "passphraseSecret": "p", "keep": 2})
    (tmp_path / "backups").mkdir()
    for name in ("hub-20200101T000000Z.zip", "hub-20210101T000000Z.zip", ".hub-1.zip.ab.new"):
        (tmp_path / "backups" / name).touch()
    assert await ran(pod["containers"][0], tmp_path, FAKE) == (0, "")
    older, newer = sorted(path.name for path in (tmp_path / "backups").iterdir())
    assert (older, newer > older) == ("hub-20210101T000000Z.zip", True)
    called = (tmp_path / "muster" / "hub.calls").read_text()
    assert called == f"backup --passphrase-file=/etc/muster/passphrase/passphrase {tmp_path / 'backups' / newer}\n"
    # beside SQLite: on the node of the hub's pod, and with its volume
    [term] = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    documents = render("hub", MATRIX["hub"]["backed up"])
    hub, job = only(documents, "StatefulSet")["spec"], only(documents, "CronJob")["spec"]["jobTemplate"]["spec"]
    selected = term["labelSelector"]["matchLabels"].items()
    assert [selected <= each["template"]["metadata"]["labels"].items() for each in (hub, job)] == [True, False]
    claims = {each["metadata"]["name"]: each["metadata"]["annotations"] for each in of_kind(documents, "PersistentVolumeClaim")}
    mounted = [volumes[name]["persistentVolumeClaim"]["claimName"] for name in ("data", "backups")]
    assert mounted == ["data-muster-muster-hub-0", "muster-muster-hub-backup"]
    assert claims == {mounted[1]: {"helm.sh/resource-policy": "keep"}}

    pod, volumes = job_pod("backed up elsewhere", "CronJob")
    [backup, upload], [record] = pod["initContainers"], pod["containers"]
    assert backup["args"][0].startswith("hub backup --config=/etc/muster/settings/hub.yaml --record=later --passphrase-file=")
    assert (upload["image"], upload["command"], upload["env"][-1]["name"]) == ("aws", ["put"], "BUCKET")
    assert record["args"] == ["hub backup --config=/etc/muster/settings/hub.yaml --record=only /backups/hub-*.zip\n"]
    assert [volumes["data"]["emptyDir"], volumes["backups"]["emptyDir"], "affinity" in pod] == [{}, {}, False]


def test_a_restore_stops_the_pods_and_passes_its_flags() -> None:
    documents = render("hub", MATRIX["hub"]["restored"])
    assert (only(documents, "StatefulSet")["spec"]["replicas"], only(documents, "CronJob")["spec"]["suspend"]) == (0, True)
    pod, volumes = job_pod("restored", "Job")
    flags = "--replace --passphrase-file=/etc/muster/passphrase/passphrase --readopt=never"
    assert pod["containers"][0]["args"] == [f"hub restore {flags} /backups/hub-1.zip\n"]
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == "data-muster-muster-hub-0"
    [download] = job_pod("downloaded", "Job")[0]["initContainers"]
    assert (download["command"], {"name": "FILE", "value": "hub-1.zip"} in download["env"]) == (["get"], True)
    values = MATRIX["hub"]["restored"], MATRIX["hub"]["downloaded"]
    corrected = values[0] | {"resources": {"limits": {"memory": "2Gi"}}}
    names = {only(render("hub", each), "Job")["metadata"]["name"] for each in (*values, corrected)}
    assert len(names) == 3, "a Job cannot be changed"
