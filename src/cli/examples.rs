//! The examples and exit codes at the end of `--help` and of the manual pages.

pub(super) const ALL: &str = "\
Examples:
  unified-proxy run --with-logins --repo OWNER/NAME -- claude  an agent, in a sandbox of its own
  unified-proxy dev --repo OWNER/NAME                          a server for this machine
  unified-proxy explain local GET https://example.com/         why a request is denied
  unified-proxy tail --denied                                  denials as they happen
  unified-proxy container add web --ip 172.30.53.10            admit a container
  unified-proxy approvals --watch                              answer what waits for a person

Exit codes:
  0   success
  1   denied (explain, mcp list, mcp call), or a failed tool call (mcp call)
  64  wrong usage, or a request that the server refuses as invalid
  69  no server can be reached, a listener cannot be opened, data_dir is in use, or this
      machine cannot run a sandbox
  70  an internal error, or a failed check of health, registry or audit verify
  78  invalid configuration, or a data directory or CA that cannot be used

`unified-proxy COMMAND --help` has the options of a command.";

pub(super) const RUN: &str = "\
Examples:
  unified-proxy run -- npm test
  unified-proxy run --allow packages.example.com -- npm install
  unified-proxy run --with-logins --repo OWNER/NAME -- claude
  unified-proxy run --ask -- npm install          answer in another terminal: approvals --watch
  unified-proxy run --learn allowlist.yaml -- ./build.sh

Exit codes:
  the command's, or 128 and the number of the signal that ended it. If it did not start:
  64  wrong usage, a program that the sandbox does not have, or a directory that cannot be protected
  69  this machine cannot run a sandbox, or the server cannot be reached
  70  an internal error
  78  invalid configuration";

pub(super) const DEV: &str = "\
Examples:
  unified-proxy dev --repo OWNER/NAME
  unified-proxy dev --config ~/my-config --proxy-port 8081

It runs until Ctrl-C. Use a second terminal, in the same directory, for the other commands.";

pub(super) const EXPLAIN: &str = "\
Examples:
  unified-proxy explain web GET https://api.github.com/zen
  unified-proxy explain web CONNECT packages.example.com:443
  unified-proxy explain web GET wss://events.example.com/socket
  unified-proxy explain web tools/call notes add '{\"text\":\"hello\"}'

Exit codes:
  0  allowed    1  denied    64  the server refuses the arguments";

pub(super) const CONTAINER_ADD: &str = "\
Examples:
  unified-proxy container add web --ip 172.30.53.10 --repo OWNER/NAME
  unified-proxy container add bot --listener unix --auth-mode bot --expires 8h
  unified-proxy container add web --ip 172.30.53.10 --expires 2030-01-01T00:00:00Z

The same command again extends the lease. `unified-proxy container list` shows all leases.";

pub(super) const ENV: &str = "\
Examples:
  eval \"$(unified-proxy env)\"
  unified-proxy env --shell fish | source
  unified-proxy env --shell json --proxy http://proxy:8080 --certs /certs";

pub(super) const HEALTH: &str = "\
Exit codes:
  0   the listeners, the registry and the chain work, even if another check fails
  69  no server answers
  70  a listener, the registry or the chain does not work";

pub(super) const APPROVALS: &str = "\
Examples:
  unified-proxy approvals                          what waits for a decision
  unified-proxy approvals --watch                  answer questions as they are asked
  unified-proxy approvals show 3f2a
  unified-proxy approvals approve 3f2a --for 1h
  unified-proxy approvals deny 3f2a --comment later
  unified-proxy approvals grants
  unified-proxy approvals revoke 9c01
  unified-proxy approvals learned --patch          what is approved for everyone, for allowlist.yaml

Without --socket, every server of this user is asked: the one at $UNIFIED_PROXY_SOCKET or
/var/run/proxy/api.sock, that of `dev` in this directory, and each running `run`.

Exit codes:
  0   success
  64  wrong usage, or the server refuses: the question is decided or over already, or cannot be
      approved like this
  69  no server can be reached";

pub(super) const APPROVALS_APPROVE: &str = "\
Examples:
  unified-proxy approvals approve 3f2a            a tool call once, a request or host for 10 minutes
  unified-proxy approvals approve 3f2a --for 1h
  unified-proxy approvals approve 3f2a --lease --comment release
  unified-proxy approvals approve 3f2a --always   a host, for every container

`approvals show ID` lists the scopes that the question can have.";

pub(super) const APPROVALS_GRANT: &str = "\
Examples:
  unified-proxy approvals grant web packages.example.com
  unified-proxy approvals grant web api.example.com:8443 --for 1h
  unified-proxy approvals grant web packages.example.com --lease

Without --for and --lease, it holds for 10 minutes. `approvals revoke ID` ends it.";
