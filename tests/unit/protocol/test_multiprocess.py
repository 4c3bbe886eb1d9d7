"""The frames are multiprocess's own, so that its plain client can talk to a manager."""

import msgspec
from multiprocess.connection import Client

import stepwell as sw
from stepwell.protocol.codec import decode_from_manager
from stepwell.protocol.messages import VERSION, Hello, Welcome


def test_plain_multiprocess_client_is_welcomed() -> None:
    """`send_bytes` of a Hello gives a Welcome; nothing is pickled on the way."""
    with sw.Runtime.start(workers=0) as runtime, Client(runtime.address, "AF_UNIX") as connection:
        connection.send_bytes(msgspec.msgpack.encode(Hello(VERSION, "plain")))
        answer = decode_from_manager(connection.recv_bytes())
        assert isinstance(answer, Welcome)
        assert (answer.version, answer.manager_pid) == (VERSION, runtime.pid)
