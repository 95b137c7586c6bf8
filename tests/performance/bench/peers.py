"""The programs with which the product is compared. The HTTP proxies verify the origin's certificate. A proxy writes an
access log only if its name says so. All proxies but squid keep connections to the origin alive."""

import getpass
import os
import shutil

from .processes import Peer, find, free_port

PACKAGES = {
    "nginx": "nginx", "haproxy": "haproxy", "squid": "squid-openssl", "dnsmasq": "dnsmasq", "unbound": "unbound",
}
WORKERS = 2

NGINX = """
daemon off; pid {work}/nginx{log}.pid; error_log stderr crit; worker_processes {workers};
worker_rlimit_nofile 65536;
events {{ worker_connections 16384; multi_accept off; }}
http {{
  access_log {access};
  client_body_temp_path {work}/nginx-body; proxy_temp_path {work}/nginx-proxy; fastcgi_temp_path {work}/nginx-fastcgi;
  uwsgi_temp_path {work}/nginx-uwsgi; scgi_temp_path {work}/nginx-scgi;
  tcp_nodelay on; keepalive_requests 100000000; keepalive_timeout 300s;
  ssl_certificate {certificates}/leaf.pem; ssl_certificate_key {certificates}/leaf-key.pem;
  ssl_protocols TLSv1.2 TLSv1.3; ssl_session_cache off; ssl_session_tickets off;
  upstream origin {{ server 127.0.0.1:{origin}; keepalive 8192; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} ssl http2 backlog=4096;
    location / {{
      proxy_pass https://origin; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header Host $host; proxy_max_temp_file_size 0;
      proxy_ssl_server_name on; proxy_ssl_name $host; proxy_ssl_protocols TLSv1.2 TLSv1.3;
      proxy_ssl_verify on; proxy_ssl_trusted_certificate {certificates}/ca.pem;
    }}
  }}
  server {{ listen 127.0.0.1:{plain} backlog=4096; return 403; }}
}}
"""

HAPROXY = """
global
  nbthread {workers}
  maxconn 9000
defaults
  mode http
  timeout connect 5s
  timeout client 300s
  timeout server 300s
  http-reuse always
frontend proxy
  bind 127.0.0.1:{port} ssl crt {work}/haproxy.pem alpn h2,http/1.1 no-tls-tickets
  default_backend origin
backend origin
  server origin 127.0.0.1:{origin} ssl verify required ca-file {certificates}/ca.pem sni str(api.example.com) alpn http/1.1 pool-max-conn 8192
"""

SQUID = """
http_port 127.0.0.1:{port} ssl-bump tls-cert={certificates}/ca.pem tls-key={certificates}/ca-key.pem generate-host-certificates=on dynamic_cert_mem_cache_size=16MB
sslcrtd_program {sslcrtd} -s {work}/squid-certificates -M 16MB
ssl_bump bump all
http_access allow all
cache deny all
access_log none
cache_log {work}/squid-cache.log
pid_filename none
cache_store_log none
coredump_dir {work}
logfile_rotate 0
shutdown_lifetime 1 seconds
never_direct allow all
cache_peer 127.0.0.1 parent {origin} 0 no-query originserver tls tls-cafile={certificates}/ca.pem ssldomain=api.example.com name=origin
"""

UNBOUND = """
server:
  interface: 127.0.0.1
  port: {port}
  num-threads: {workers}
  so-reuseport: yes
  username: ""
  chroot: ""
  directory: "{work}"
  pidfile: ""
  use-syslog: no
  logfile: ""
  do-not-query-localhost: no
  access-control: 127.0.0.0/8 allow
  module-config: "iterator"
  outgoing-range: 4096
  num-queries-per-thread: 4096
  local-zone: "denied.example.net." always_nxdomain
  {cache}
forward-zone:
  name: "."
  forward-addr: 127.0.0.1@{nameserver}
remote-control:
  control-enable: no
"""
NO_CACHE = "msg-cache-size: 0\n  rrset-cache-size: 0\n  cache-max-ttl: 0\n  cache-max-negative-ttl: 0"


class Peers:
    """Starts peers. The names of programs that are not installed are added to `missing`."""

    def __init__(self, processes, work, performance, certificates, origin, nameserver, mitmdump):
        self.processes, self.work, self.performance = processes, work, performance
        self.certificates, self.origin, self.nameserver = certificates, origin, nameserver
        self.mitmdump = mitmdump
        self.missing = []

    def fill(self, template, **more):
        return template.format(work=self.work, certificates=self.certificates, origin=self.origin,
                               nameserver=self.nameserver, workers=WORKERS, **more)

    def has(self, program):
        if not find(program):
            self.missing.append(f"{program} (apt-get install {PACKAGES[program]})")
        return find(program)

    def launch(self, name, port, *command, **more):
        process = self.processes.start(name, *command)
        self.processes.await_port(name, process, port)
        return Peer(name, port, process.pid, self.certificates / "ca.pem", **more)

    def ours(self, name, *arguments):
        port = free_port()
        return self.launch(name, port, self.performance, *arguments, "--listen", f"127.0.0.1:{port}", "--upstream",
                           f"127.0.0.1:{self.origin}", "--certificates", self.certificates)

    def nginx(self, logged=False):
        if not (program := self.has("nginx")):
            return None
        name, log = ("nginx, access log", "-logged") if logged else ("nginx", "")
        config, port, plain = self.work / f"nginx{log}.conf", free_port(), free_port()
        access = f"{self.work}/access.log" if logged else "off"
        config.write_text(self.fill(NGINX, port=port, plain=plain, access=access, log=log))
        return self.launch(name, port, program, "-c", config, "-p", self.work, route="reverse", plain_port=plain)

    def haproxy(self):
        if not (program := self.has("haproxy")):
            return None
        config, port = self.work / "haproxy.cfg", free_port()
        pems = [(self.certificates / name).read_text() for name in ("leaf.pem", "leaf-key.pem")]
        (self.work / "haproxy.pem").write_text("".join(pems))
        config.write_text(self.fill(HAPROXY, port=port))
        return self.launch("haproxy", port, program, "-f", config, "-db", route="reverse")

    def mitmproxy(self):
        if not self.mitmdump:
            self.missing.append("mitmdump (scripts/bench --install, or pip install mitmproxy)")
            return None
        home, port = self.work / "mitmproxy", free_port()
        # mitmproxy has no setting for the address of a host name, so it runs as a reverse proxy, like nginx.
        peer = self.launch("mitmproxy", port, self.mitmdump, "-q", "--mode", f"reverse:https://127.0.0.1:{self.origin}",
                           "--listen-host", "127.0.0.1", "--listen-port", port, "--set", f"confdir={home}",
                           "--set", "keep_host_header=true",
                           "--set", f"ssl_verify_upstream_trusted_ca={self.certificates / 'ca.pem'}", route="reverse")
        peer.ca = home / "mitmproxy-ca-cert.pem"
        return peer

    def squid(self):
        if not (program := self.has("squid")):
            return None
        sslcrtd, store = "/usr/lib/squid/security_file_certgen", self.work / "squid-certificates"
        made = self.processes.start("squid-certificates", sslcrtd, "-c", "-s", store, "-M", "16MB")
        made.wait()
        self.processes.running.remove(made)
        if os.geteuid() == 0:
            # squid that is started by root continues as the user `proxy`.
            self.work.chmod(0o711)
            log = self.work / "squid-cache.log"
            log.touch()
            for path in (log, store, *store.rglob("*")):
                shutil.chown(path, "proxy")
        config, port = self.work / "squid.conf", free_port()
        config.write_text(self.fill(SQUID, port=port, sslcrtd=sslcrtd))
        return self.launch("squid", port, program, "-N", "-f", config)

    def dnsmasq(self):
        if not (program := self.has("dnsmasq")):
            return None
        port = free_port()
        return self.launch("dnsmasq", port, program, "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv",
                           "--no-hosts", "--pid-file", f"--user={getpass.getuser()}", "--bind-interfaces",
                           "--listen-address=127.0.0.1", f"--port={port}", f"--server=127.0.0.1#{self.nameserver}",
                           "--cache-size=10000", "--dns-forward-max=10000", "--address=/denied.example.net/")

    def unbound(self, cache=True):
        if not (program := self.has("unbound")):
            return None
        name = "unbound" if cache else "unbound, no cache"
        config, port = self.work / f"{name}.conf", free_port()
        config.write_text(self.fill(UNBOUND, port=port, cache="" if cache else NO_CACHE))
        return self.launch(name, port, program, "-d", "-c", config)
