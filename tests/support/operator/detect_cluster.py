"""What JAX's own cluster detection makes of environments, in a process of its own.

Reads JSON from stdin: the host names that resolve, and a list of environments. Writes for each one what was detected,
the coordinator, the number of processes and this one's number.
"""

import http.server
import json
import os
import socket
import sys
import threading
import time

from jax._src import clusters


class Metadata(http.server.BaseHTTPRequestHandler):
    """A VM's metadata server, which JAX asks for the `MEGASCALE_*` that the environment has not. It knows of none."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ZONE: 'us-east5-a'\n" if self.path.endswith("/tpu-env") else b"")

    def log_message(self, *_):
        pass


def resolver(names):
    """Knows the names of the pods, as their headless Services make them, and no others."""

    def resolve(name):
        if name not in names:
            raise socket.gaierror(f"{name!r} is no pod's name")
        return "127.0.0.1"

    return resolve


def refuse(_seconds):
    raise AssertionError("the detection waits for a name that does not exist")


def detect(environment):
    for name in list(os.environ):
        if name.startswith(("TPU_", "MEGASCALE_", "JAX_", "KUBERNETES_")):
            del os.environ[name]
    os.environ.update(environment)
    kinds = clusters.ClusterEnv._cluster_types
    kind = next(each for each in kinds if not each.opt_in_only_method and each.is_env_present())
    found = clusters.ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, 60)
    return [kind.__name__, *found[:3]]


def main():
    given = json.load(sys.stdin)
    server = http.server.HTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["GCE_METADATA_IP"] = f"127.0.0.1:{server.server_port}"
    socket.gethostbyname = resolver(frozenset(given["names"]))
    time.sleep = refuse
    json.dump([detect(environment) for environment in given["environments"]], sys.stdout)


if __name__ == "__main__":
    main()
