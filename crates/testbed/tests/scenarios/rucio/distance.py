"""Storages at some distance, as those of a Rucio are.

XRootD 5.5 computes a checksum aside, and serves a connection twice at a time if the client goes on with it, or closes it, before
the thread that began with the checksum is out of the way. Then it closes descriptors of others, and crashes or takes no connection
any more. Beside it on one machine, as busy as this suite keeps that, a client is so fast now and then; from some way off nobody is.
"""

import asyncio
import threading
from urllib.parse import urlsplit

# What a client sends is under way for so long.
DELAY_S = 0.05
PIECE_BYTES = 65_536


def put_between(storages):
    """From now on they are reached by other ports: what is given of each says which."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    for given in storages.values():
        parts = urlsplit(given["url"])
        port = asyncio.run_coroutine_threadsafe(listen(parts.port), loop).result()
        given["url"] = parts._replace(netloc="%s:%d" % (parts.hostname, port)).geturl()


async def listen(port):
    """Leads to the server at that port; gives its own."""

    async def carry(from_client, to_client):
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            # It is being started again.
            to_client.close()
            return
        await asyncio.gather(pass_on(from_client, to_server, DELAY_S), pass_on(from_server, to_client, 0))
        to_server.close()
        to_client.close()

    listener = await asyncio.start_server(carry, "127.0.0.1", 0)
    return listener.sockets[0].getsockname()[1]


async def pass_on(reader, writer, delay_s):
    """Everything, and its end."""
    try:
        while piece := await reader.read(PIECE_BYTES):
            await asyncio.sleep(delay_s)
            writer.write(piece)
            await writer.drain()
        await asyncio.sleep(delay_s)
        writer.write_eof()
    except OSError:
        # One side is gone, so the other has nothing to wait for.
        writer.transport.abort()
