"""Sends requests that are generated from the published OpenAPI to a running hub. It finds status 500 and undocumented answers.

    python -m bench.fuzz [--examples N] [--cases N] [--seconds N] [--seed N]

First it sends mutated bodies of every format, bearer tokens and gRPC messages (`bench.wirefuzz`). Then it sends examples of
every operation of every document: valid, nearly valid and invalid. It checks status, content type and schema of each answer.
Watches are left out, because they do not end. The result is written to bench/fuzz.md.
"""

import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st
from schemathesis.checks import CheckFunction
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.result import Err
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from bench import wirefuzz
from bench.stage import staged
from bench.wirefuzz import Part
from machinery.client import kubeconfig
from machinery.runtime.clock import SystemClock

Case = schemathesis.Case[Any]
Operation = APIOperation[Any, Any, Any, Any]
CHECKS: Sequence[CheckFunction] = (status_code_conformance, content_type_conformance, response_schema_conformance)
NOTES = Path(__file__).with_name("fuzz.md")
NAMES = ("fuzz-a", "fuzz-b", "default", "kube-system", "managed-cluster-lease")
WITH_OBJECTS = ("POST", "PUT")
UNENDING = ("watch", "sendInitialEvents")
INTERNAL_ERROR = 500
SHOWN = 2000
SELDOM, MOSTLY = 0.1, 0.8


def fuzzed(path: Path, *, examples: int, number: int, most: int | None = None) -> Part:
    """Run all operations, or at most `most`, in a random order, with the credentials of a kubeconfig. `number`: the seed."""
    part, began = Part("operations"), time.monotonic()
    with session_of(path) as (url, session):

        def send(operation: Operation, case: Case) -> None:
            try:
                answer = case.call(base_url=url, session=session, verify=session.verify, cert=session.cert)
            except requests.ConnectionError as error:
                shown = f"{case.as_curl_command()}\n{error}"[:SHOWN]
                part.failures.setdefault(f"{operation.label}: no answer", shown)
                return
            part.outcomes[str(answer.status_code)] += 1
            try:
                case.validate_response(answer, checks=list(CHECKS))
                wrong = ["Internal error"] if answer.status_code == INTERNAL_ERROR else []
            except FailureGroup as group:
                wrong = [f"{type(each).__name__}: {each}" for each in group.exceptions]
            except Failure as failure:
                wrong = [f"{type(failure).__name__}: {failure}"]
            for text in wrong:
                shown = f"{case.as_curl_command()}\n{answer.status_code} {answer.text}\n{text}"
                part.failures.setdefault(f"{operation.label}: {text.splitlines()[0]}", shown[:SHOWN])

        operations = list(_operations(url, session))
        random.Random(number).shuffle(operations)  # noqa: S311 - to repeat it
        for kind, operation in operations[:most]:
            _send_examples(kind, operation, send, examples, number)
        part.name = f"{len(operations[:most])} operations of the published OpenAPI"
    part.seconds = time.monotonic() - began
    return part


def _operations(url: str, session: requests.Session) -> Iterator[tuple[Mapping[str, str], Operation]]:
    """Yield all operations of all documents, each with its group, version and kind."""
    for entry in session.get(f"{url}/openapi/v3").json()["paths"].values():
        document = session.get(url + entry["serverRelativeURL"]).json()
        for found in schemathesis.openapi.from_dict(document, config=SchemathesisConfig()).get_all_operations():
            if isinstance(found, Err):
                raise found.err()
            operation = found.ok()
            raw = document["paths"][operation.path][operation.method]
            yield raw.get("x-kubernetes-group-version-kind", {}), operation


def _send_examples(
    kind: Mapping[str, str], operation: Operation, send: Callable[[Operation, Case], None], examples: int, number: int
) -> None:
    cases = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if operation.body or operation.query:
        cases = st.one_of(cases, cases, operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    health = list(HealthCheck)

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=health)
    @given(case=cases, draw=st.randoms(use_true_random=False))
    def sent(case: Case, draw: random.Random) -> None:
        _make_plausible(case, kind, draw)
        send(operation, case)

    sent()


def _make_plausible(case: Case, kind: Mapping[str, str], draw: random.Random) -> None:
    """Change a case so that it uses names that may exist, mostly the right type of object, and no watch."""
    kept = {
        name: value for name, value in dict(case.query or {}).items() if name not in UNENDING and draw.random() < MOSTLY / 2
    }
    if "timeout" in kept and draw.random() > SELDOM:
        del kept["timeout"]
    case.query = kept
    name = draw.choice(NAMES)
    if case.path_parameters and draw.random() < MOSTLY:
        case.path_parameters = {part: name if part == "name" else draw.choice(NAMES) for part in case.path_parameters}
    if case.method.upper() in WITH_OBJECTS and isinstance(case.body, dict) and draw.random() > SELDOM:
        namespace = dict(case.path_parameters or {}).get("namespace")
        case.body = _typed(case.body, kind, name, namespace, draw)


def _typed(
    body: Mapping[str, Any], kind: Mapping[str, str], name: str, namespace: str | None, draw: random.Random
) -> dict[str, Any]:
    """Return the body as an object of its kind with a name. Sometimes keep its other metadata, which is mostly refused."""
    given, group, version = body.get("metadata"), kind.get("group", ""), kind.get("version", "")
    metadata = dict(given) if isinstance(given, dict) and draw.random() > MOSTLY else {}
    metadata |= {"name": name, **({"namespace": namespace} if namespace else {})}
    typed = {"apiVersion": f"{group}/{version}" if group else version, "kind": kind.get("kind", "")}
    return {**body, **typed, "metadata": metadata}


@contextmanager
def session_of(path: Path) -> Iterator[tuple[str, requests.Session]]:
    read = kubeconfig.read_kubeconfig(path)
    credential = read.require_credential()
    with TemporaryDirectory() as folder, requests.Session() as session:
        authority, chain, key = (Path(folder, name) for name in ("ca.pem", "chain.pem", "key.pem"))
        contents = (read.cluster.certificate_authority, credential.chain, credential.key)
        for file, content in zip((authority, chain, key), contents, strict=True):
            file.touch(mode=0o600)
            file.write_bytes(content)
        session.trust_env = False  # the environment may name another CA
        session.verify, session.cert = str(authority), (str(chain), str(key))
        yield read.cluster.server, session


def written(findings: Part, parts: Sequence[Part], examples: int, number: int, began: datetime) -> str:
    failures = [name for part in (findings, *parts) for name in part.failures]
    rows = [
        f"| {part.name} | {part.outcomes.total()} | {part.seconds:.0f} s | "
        f"{', '.join(f'{count} {name}' for name, count in part.outcomes.most_common())} |"
        for part in parts
    ]
    answers = ", ".join(f"{count} of {status}" for status, count in sorted(findings.outcomes.items()))
    counted = f"{findings.outcomes.total()} requests to {findings.name}"
    took = f"{findings.seconds / 60:.1f} minutes ({examples} examples of each, seed {number})"
    lines = [
        "# Generated requests: the last run",
        "",
        f"Written by `make fuzz` on {began:%Y-%m-%d}: {counted} in {took}.",
        "",
        f"Answers: {answers}.",
        "",
        "| mutated | cases | time | outcomes |",
        "|---|---|---|---|",
        *rows,
        "",
        "No internal error, no missing or late answer, no undocumented answer."
        if not failures
        else f"{len(failures)} kinds of failures:",
        *(f"- {name}" for name in sorted(failures)),
    ]
    return "\n".join(lines) + "\n"


async def _run(examples: int, number: int, cases: int, seconds: float) -> int:
    began = SystemClock().now()
    async with staged() as stage:
        await stage.start_hub("--auto-approve=fuzz-*")
        parts = await wirefuzz.fuzzed(stage, random.Random(number), cases=cases, seconds=seconds)  # noqa: S311 - to repeat it
        findings = await asyncio.to_thread(fuzzed, stage.admin, examples=examples, number=number)
    NOTES.write_text(written(findings, parts, examples, number, began))
    failures = [shown for part in (findings, *parts) for shown in part.failures.values()]
    click.echo("\n\n".join((NOTES.read_text(), *failures)))
    return 1 if failures else 0


@click.command(help=__doc__)
@click.option("--examples", default=60, show_default=True, help="For every operation.")
@click.option("--cases", default=2_000, show_default=True, help="Of bodies, of tokens and of gRPC messages.")
@click.option("--seconds", default=120.0, show_default=True, help="At most for each of these.")
@click.option("--seed", type=int, default=lambda: random.randrange(10**6), help="Repeats a run.")  # noqa: S311 - no secret
def main(examples: int, cases: int, seconds: float, seed: int) -> None:
    sys.exit(asyncio.run(_run(examples, seed, cases, seconds)))


if __name__ == "__main__":
    main()
