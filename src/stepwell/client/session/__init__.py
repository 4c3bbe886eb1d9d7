"""The session: how a client reaches its manager, and the state that all services of one client share.

The bottom layer of the client. Upwards: `api` defines the services, `workflows` combine their calls, and the facades
`client.client`, `client.execution` and `client.plan_lifecycle` are what programs import.

Entry points:
- `session.Session`: performs a `calls.Call` (one, many, or a transaction), and holds leases, project and bodies.
- `session_rules.SessionRules`: the state of a session, and what a welcome or a lost manager means for it. No I/O.
- `delivery.Delivery`: one message, and the decisions about sending it again. No I/O; it has the table of phases.
- `request_numbers.RequestNumbers`: numbers requests, so that the manager executes each write once.
- `channel.Channel`: the blocking driver of these rules: sends a message until its answer is here. `aio` has the other.
- `connection_pool.ConnectionPool`: the connections of one session, one for each thread that is inside a call.
- `push_connection.PushConnection`: a connection on which the manager sends events or task outcomes unasked.
- `task_futures.TaskFutures`: futures of tasks that run in worker processes.
- `environment.Environment`: sockets, time, randomness, ids and files of the operating system; a simulator has another.
- `body_reader.BodyReader`, `tokens`, `lazy`: reading bodies, counting tokens, properties that are computed once.

Imports: `domain`, `protocol`, `transport`, `memory.reader` and `storage.body_reader`; never `api`, `workflows` or a
facade. An import contract enforces that.

Invariants:
- All objects here may be used by any number of threads, unless their docstring says otherwise.
- A forked child never uses a connection, a lock or a lease of its parent. It begins a session of its own.
- A write is sent again only while the manager still remembers the session that sent it first.
"""
