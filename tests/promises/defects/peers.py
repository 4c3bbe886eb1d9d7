"""Defects that break the promises that no peer is a hostage, and of access."""

from __future__ import annotations

from tests.promises.model import Defect

DELAY = (
    "No peer, dead, stopped, slow, half-way through a frame or hostile, delays another by more than a turn of the loop."
)
NO_TCP = "There is no TCP."
MODES = "The socket has mode 0600 in a directory of 0700"
USER = "the kernel tells the manager the peer's user"
FILES = "The files of a data directory have mode 0600"
EVALUATED = "Nothing that a peer sends is unpickled, imported or evaluated."

LOOP = "tests/unit/manager/test_loop.py"
PEER = "tests/unit/transport/test_peer.py"
BAD = "tests/faults/test_bad_peers.py"
LARGE = "tests/unit/manager/test_large_requests.py"
ADDRESS = "tests/unit/transport/test_address.py"
BANS = "tests/architecture/test_bans.py"
PRIVATE = "tests/unit/storage/test_private_files.py"

DEFECTS = (
    Defect(
        6,
        DELAY,
        "The manager waits in `recv` for a peer that sends nothing.",
        "transport/peer.py",
        "        connection.setblocking(False)  # noqa: FBT003\n",
        "        connection.setblocking(True)  # noqa: FBT003\n",
        (f"{PEER}::test_reading_nothing_is_no_end",),
        may_hang=True,
    ),
    Defect(
        6,
        DELAY,
        "All requests that a peer has sent are applied in one turn.",
        "manager/loop.py",
        "        while done < limits.COMMANDS_PER_TURN:",
        "        while done < 1_000_000_000:",
        (f"{LOOP}::test_one_peer_does_a_bounded_number_of_commands_a_turn",),
    ),
    Defect(
        6,
        DELAY,
        "A large batch is executed in one slice, while the other peers wait.",
        "manager/large_requests.py",
        "        self._requests.advance(request, session, connection.uploads.held, self._budget)\n",
        "        self._requests.advance(request, session, connection.uploads.held, None)\n",
        (f"{LARGE}::test_small_requests_are_answered_before_large_ones",),
        may_hang=True,
    ),
    Defect(
        6,
        DELAY,
        "Requests of a peer that does not read its replies are served without end.",
        "transport/peer.py",
        "        if self.is_full:\n            return None\n        if self._failure",
        "        if self._failure",
        (f"{PEER}::test_full_outbox_holds_back_the_requests", f"{LOOP}::test_peer_that_does_not_read_is_held_back"),
    ),
    Defect(
        6,
        DELAY,
        "A peer that stalls in the middle of a frame is never disconnected.",
        "transport/peer.py",
        "        return bool(self._framer.buffer) and now_s - self._frame_since_s > limits.FRAME_SECONDS_MAX",
        "        return False",
        (f"{LOOP}::test_who_stalls_is_evicted", f"{PEER}::test_stalled_is_who_owes_something_for_too_long"),
    ),
    Defect(
        6,
        DELAY,
        "A violation of the protocol ends the manager.",
        "manager/loop.py",
        "            except StepwellError as error:\n"
        "                self._reject(connection, error)\n"
        "                return\n",
        "            except StepwellError:\n                raise\n",
        (f"{BAD}::test_what_is_no_protocol_ends_the_connection", f"{LOOP}::test_connection_begins_with_a_hello"),
    ),
    Defect(
        13,
        NO_TCP,
        "The manager listens on a TCP port.",
        "transport/address.py",
        "    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)\n",
        "    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)\n",
        (f"{BANS}::test_is_not_written[network_sockets]",),
    ),
    Defect(
        13,
        MODES,
        "The socket has mode 0644.",
        "transport/address.py",
        "            path.chmod(0o600)\n",
        "            path.chmod(0o644)\n",
        (f"{ADDRESS}::test_socket_is_for_its_user_alone",),
    ),
    Defect(
        13,
        MODES,
        "A directory that is made for the socket has mode 0755.",
        "transport/address.py",
        "directory.mkdir(mode=0o700,",
        "directory.mkdir(mode=0o755,",
        (f"{ADDRESS}::test_missing_directory_is_made_private",),
    ),
    Defect(
        13,
        MODES,
        "The directory of the socket may be open to other users.",
        "transport/address.py",
        "    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:",
        "    if status.st_uid != os.geteuid():",
        (f"{ADDRESS}::test_open_directory_is_refused",),
    ),
    Defect(
        13,
        USER,
        "The manager serves the processes of other users.",
        "manager/acceptor.py",
        "        if peer.uid != os.geteuid():",
        "        if peer.uid < 0:",
        (f"{LOOP}::test_other_users_are_turned_away",),
    ),
    Defect(
        13,
        FILES,
        "The files of a data directory can be read by other users.",
        "storage/files/private_files.py",
        "os.O_CLOEXEC, 0o600)",
        "os.O_CLOEXEC, 0o644)",
        (f"{PRIVATE}::test_mode_of_the_files",),
    ),
    Defect(
        13,
        EVALUATED,
        "A message that cannot be decoded is unpickled.",
        "protocol/codec.py",
        "    except _UNDECODABLE as error:\n"
        '        raise ProtocolError(f"that is not our protocol: {error}") from error\n',
        "    except _UNDECODABLE:\n        import pickle\n\n        return pickle.loads(payload)\n",
        (f"{BANS}::test_is_not_written[evaluated_input]", f"{BAD}::test_what_is_no_protocol_ends_the_connection"),
    ),
)
