#!/usr/bin/env python3
"""A web server that answers its name and the source it saw: answer.py NAME PORT."""

import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME, PORT = sys.argv[1], int(sys.argv[2])


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        source = self.client_address[0].removeprefix("::ffff:")
        body = f"{NAME}, which sees the client as {source}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6  # "::" takes IPv4 too


Server(("::", PORT), Answer).serve_forever()
