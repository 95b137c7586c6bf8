# syntax=docker/dockerfile:1
#
#   docker build --build-arg COMMIT="$(git rev-parse --short=12 HEAD)" --tag unified-proxy .
#   docker build --target tools --tag unified-proxy:tools .
#   docker build --target coding-sidecar --tag unified-proxy:coding-sidecar .
#
# The image has a static binary, the system's root certificates, the shipped configuration and
# licences; no shell, no libc, no package manager. The process is never root and has no capability:
# the engine lets every process of the container's network namespace listen on port 53
# (net.ipv4.ip_unprivileged_port_start). docs/adr/015-container-image.md has the reasons.

FROM rust:1-bookworm AS build
ARG COMMIT=unknown
WORKDIR /src
COPY . .
# cargo's registry and the compiled objects stay in caches of the builder, so that only changed
# crates are compiled again.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    UNIFIED_PROXY_COMMIT="$COMMIT" scripts/release binary \
    && packaging/image/root /image target/dist/unified-proxy /etc/ssl/certs/ca-certificates.crt config \
        LICENSE target/dist/third-party-licences.txt \
    && install -D target/dist/coding-sidecar /sidecar/coding-sidecar

# Only the file, for the Dockerfile of a tool container:
#   COPY --from=unified-proxy:coding-sidecar /coding-sidecar /usr/local/bin/
FROM scratch AS coding-sidecar
COPY --from=build /sidecar /
ENTRYPOINT ["/coding-sidecar"]

# The appliance with interpreters for MCP servers that speak stdio. Each server runs in its own
# namespaces; to create them, the container needs packaging/seccomp/unified-proxy.json
# (docs/operations.md#containers).
FROM node:22-bookworm-slim AS tools
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 unified-proxy \
    && useradd --uid 65532 --gid 65532 --home-dir /var/lib/unified-proxy --shell /usr/sbin/nologin unified-proxy
COPY --from=build /image/usr/bin/unified-proxy /usr/bin/unified-proxy
COPY --from=build /image/etc/unified-proxy /etc/unified-proxy
COPY --from=build /image/usr/share/doc/unified-proxy /usr/share/doc/unified-proxy
# COPY of a directory copies only its contents, so the modes are set here.
RUN install --directory --owner=65532 --group=65532 --mode=0700 /var/lib/unified-proxy /run/proxy \
    && install --directory --owner=65532 --group=65532 --mode=0755 /certs
USER 65532:65532
VOLUME ["/var/lib/unified-proxy", "/certs"]
EXPOSE 8080/tcp 53/udp 53/tcp 8090/tcp
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --retries=3 --start-period=15s CMD ["/usr/bin/unified-proxy", "health"]
ENTRYPOINT ["/usr/bin/unified-proxy"]
CMD ["serve"]

# The last stage is what `docker build` makes by default.
FROM scratch AS appliance
# packaging/image/root set the owners of the files; COPY from another stage keeps them.
COPY --from=build /image /
USER 65532:65532
VOLUME ["/var/lib/unified-proxy", "/certs"]
EXPOSE 8080/tcp 53/udp 53/tcp 8090/tcp
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --retries=3 --start-period=15s CMD ["/usr/bin/unified-proxy", "health"]
ENTRYPOINT ["/usr/bin/unified-proxy"]
CMD ["serve"]
