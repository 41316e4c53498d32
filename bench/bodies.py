"""The most expensive request bodies of each format, and the processor time of parsing each.

    python -m bench bodies

The figure is processor time of this process, the best of five. A body within the bounds takes at most 20 ms; a refused body
takes less.
"""

import asyncio
import json
import time
from collections.abc import Iterator

import click

from machinery.apiserver.http.limits import BODY_LIMIT
from machinery.apiserver.write import bodies as request_bodies, patches, protobuf
from machinery.errors import BadRequestError
from machinery.meta import bounded_json as boundedjson, bounded_yaml as boundedyaml

YAML, JSON, PROTOBUF, APPLY = "application/yaml", "application/json", "application/vnd.kubernetes.protobuf", patches.APPLY_PATCH
LIMIT = boundedyaml.REQUEST
ROUNDS = 5


def worst(size: int = BODY_LIMIT) -> Iterator[tuple[str, str, bytes, bool]]:
    """Yield name, media type and body (at most `size` bytes), and whether the body is within the bounds."""
    for name, body, accepted in _yaml():
        yield name, YAML, body[:size].encode(), accepted and len(body) <= size
    for name, unit, around in (
        ("lists", "[]", '{"a":[%s]}'),
        ("objects", '{"a":1}', '{"a":[%s]}'),
        ("numbers", "1e-300", '{"a":[%s]}'),
        ("texts", '"\\u1234"', '{"a":[%s]}'),
    ):
        most = boundedjson.MOST_VALUES // (2 if name in ("lists", "objects") else 1) - 2
        for accepted, count in ((True, most), (False, size // (len(unit) + 1) - 1)):
            body = around % ",".join([unit] * count)
            yield f"JSON {name} {'at' if accepted else 'above'} the bound", JSON, body.encode(), accepted and len(body) <= size
    keys = ",".join(f'"k{number}":{number}' for number in range(boundedjson.MOST_VALUES - 1))
    yield "JSON keys at the bound", JSON, f"{{{keys}}}".encode(), len(keys) < size
    keys = ",".join(f'"k{number}":{number}' for number in range(request_bodies.MOST_APPLIED - 1))
    yield "applied JSON keys at the bound", APPLY, f"{{{keys}}}".encode(), len(keys) < size
    for depth in (boundedjson.DEEPEST, boundedjson.DEEPEST + 1, size // 7):
        body = '{"a":' * depth + "1" + "}" * depth
        yield f"JSON {depth} deep", JSON, body.encode(), depth <= boundedjson.DEEPEST
        yield f"applied JSON {depth} deep", APPLY, body.encode(), depth <= boundedjson.DEEPEST
    commas = json.dumps({"data": {"table.csv": "1,2,3\\\n" * (min(size, BODY_LIMIT) // 10)}})
    yield "JSON with commas in a text", JSON, commas.encode(), True
    for count in (protobuf.MOST_FIELDS - 4, size // 3 - 50):
        yield f"protobuf of {count} fields", PROTOBUF, _event(b"\xf8\x01\x01" * count), count < protobuf.MOST_FIELDS


def _yaml() -> Iterator[tuple[str, str, bool]]:
    many, long = LIMIT.nodes, LIMIT.scalar
    for accepted, less in ((True, 2), (False, -2)):
        bound = "at" if accepted else "above"
        yield f"YAML scalars {bound} the bound", f"a: [{'a,' * (many - 3 + (0 if accepted else 4))}]", accepted
        yield f"YAML keys {bound} the bound", "".join(f"k{number}: v\n" for number in range(many // 2 - less)), accepted
        flow = "{a: 1}," * ((many - 3) // 3 + (0 if accepted else 2))
        deep = LIMIT.depth - 3
        yield f"YAML objects {bound} the bound", f"a: [{flow}]", accepted
        deeply = flow[7 * deep :] if accepted else flow
        yield f"YAML deep objects {bound} the bound", f"a: {'[' * deep}{deeply}{']' * deep}", accepted
        more = 0 if accepted else 1
        yield f"YAML levels {bound} the bound", f"a: {'[' * (LIMIT.depth - 1 + more)}{']' * (LIMIT.depth - 1 + more)}", accepted
        yield f"YAML bytes {bound} the bound", "a: 1" + "\n" * (LIMIT.size - 4 + more), accepted
        yield f"a YAML text {bound} the bound", f'a: "{"x" * (long + (0 if accepted else 1))}"', accepted
    for opened in ("[", "{a: ", "- ", "? ", "- - ? ", "[{a: "):
        yield f"YAML deep with {opened}", opened * 20_000, False
    yield "YAML in base 60", f"a: {':'.join(['1'] * 50_000)}", True
    yield "a YAML number", f"a: {'9' * 100_000}", True
    yield "YAML tag directives", "".join(f"%TAG !a{number}! x\n" for number in range(10_000)) + "---\na: 1", False
    yield "YAML documents", "---\n" * 50_000, False
    yield "a YAML anchor", "a: &a x", False
    yield "a YAML alias", "a: *a", False
    yield "YAML anchors", "".join(f"- &a{number} x\n" for number in range(10_000)), False
    yield "YAML aliases", "a: &a [x]\n" + "".join(f"b{number}: [*a, *a]\n" for number in range(1_000)), False
    yield "YAML tags", "".join(f"- !<a{number}> x\n" for number in range(10_000)), False
    yield "YAML of bytes", f"a: !!binary {'x' * 100_000}", False
    yield "YAML blank lines", "a: |\n" + " \n" * 100_000 + "  x", True
    yield "a long YAML key", f"{'a' * 100_000}: b", False


def _event(content: bytes) -> bytes:
    return protobuf.MAGIC + protobuf_part(1, protobuf_part(1, b"v1") + protobuf_part(2, b"Event")) + protobuf_part(2, content)


def protobuf_part(number: int, content: bytes) -> bytes:
    """Return a protobuf field with its length."""
    length, left = b"", len(content)
    while left > 0x7F:
        length, left = length + bytes([left & 0x7F | 0x80]), left >> 7
    return bytes([number << 3 | 2]) + length + bytes([left]) + content


async def read(media: str, body: bytes) -> bool:
    try:
        await (request_bodies.decode_configuration(body) if media == APPLY else request_bodies.decode(body, media, "Thing"))
    except BadRequestError:
        return False
    return True


async def measured() -> dict[str, float]:
    """Return the milliseconds for each body."""
    spent = {}
    for name, media, body, _ in worst():
        rounds = []
        for _ in range(ROUNDS):
            began = time.process_time()
            await read(media, body)
            rounds.append(time.process_time() - began)
        spent[name] = round(min(rounds) * 1e3, 1)
    return spent


@click.command()
def bodies() -> None:
    """Processor time of the most expensive request bodies."""
    for name, milliseconds in asyncio.run(measured()).items():
        click.echo(f"{milliseconds:8.1f} ms  {name}")
