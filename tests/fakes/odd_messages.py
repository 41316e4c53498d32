"""Messages of the wire that no agent would send: every field at its bounds, absent, or another's."""

from random import Random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

TEXTS = (
    *("", "edge1", "edge2", "agent", "uid-1", "x" * 300, "\0", "../.."),
    *("é", "-1", "1e400", "9" * 400, "1Ei", "a/b", "True", "*"),
)
BLOBS = (b"", b"\0", b"-----BEGIN CERTIFICATE REQUEST-----\n", b"\xff" * 100)
ABSENT = 0.4
WHOLE = (0, 1, 2**31 - 1)
_OF_SIGN = {
    FieldDescriptor.TYPE_INT32: (-1, -(2**31)),
    FieldDescriptor.TYPE_INT64: (-1, -(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (2**32 - 1,),
    FieldDescriptor.TYPE_UINT64: (2**63, 2**64 - 1),
}
M = TypeVar("M", bound=Message)


def odd(kind: type[M], random: Random) -> M:
    """A message of this kind."""
    message = kind()
    _fill(message, random, 5)
    return message


def _fill(message: Message, random: Random, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if not depth or random.random() < ABSENT:
            continue
        part: Any = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for _ in range(random.randrange(3)):
                if value.message_type is None:
                    part[_scalar(key, random)] = _scalar(value, random)
        elif field.is_repeated:
            for _ in range(random.randrange(3)):
                if field.message_type is not None:
                    _fill(part.add(), random, depth - 1)
                else:
                    part.append(_scalar(field, random))
        elif field.message_type is not None:
            part.SetInParent()
            _fill(part, random, depth - 1)
        else:
            setattr(message, field.name, _scalar(field, random))


def _scalar(field: Any, random: Random) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return random.choice(TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return random.choice(BLOBS)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return random.random() < ABSENT
    return random.choice((*WHOLE, *_OF_SIGN.get(field.type, ())))
