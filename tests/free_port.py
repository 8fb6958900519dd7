import socket


def free_port() -> int:
    """A port of this machine that no process listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]
