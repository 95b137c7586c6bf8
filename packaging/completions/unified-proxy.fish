# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_unified_proxy_global_optspecs
    string join \n h/help V/version
end

function __fish_unified_proxy_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_unified_proxy_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_unified_proxy_using_subcommand
    set -l cmd (__fish_unified_proxy_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -s V -l version -d 'Print version'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "run" -d 'Run one command in a sandbox of its own'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "dev" -d 'Serve this machine until Ctrl-C, with local defaults'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "serve" -d 'Serve registered containers: the proxy, DNS and the MCP gateway'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "check" -d 'Validate every configuration file'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "explain" -d 'Say what would happen to a request, and why'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "tail" -d 'Show flows as they end'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "container" -d 'Register, remove and show containers'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "approvals" -d 'What waits for a person, and the answers'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "mcp" -d 'Tools of MCP servers, for people and for agents that speak stdio only'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "health" -d 'Say whether listeners, registry and chain work'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "env" -d 'Print the environment that points clients at the proxy'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "sandbox-files" -d 'Write the placeholder credential files that a sandbox mounts'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "registry" -d 'Check, copy and restore the registry\'s file'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "run-appliance" -d 'The appliance of one `run`'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "sandbox-forwarder" -d 'Forward a sandbox\'s connections to the proxy'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "sandbox-pid1" -d 'PID 1 of a sandbox'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "sandbox-enter" -d 'Run a program that enters a sandbox, without the terminal'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "sandbox-session" -d 'Lead the session of a command in a sandbox'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "sandbox-supervisor" -d 'Kill what an unconfined command leaves when it ends'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "sandbox-init" -d 'Start an unconfined command in a PID namespace'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "ca" -d 'The interception CA'
complete -c unified-proxy -n "__fish_unified_proxy_needs_command" -f -a "audit" -d 'The audit log'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand run" -l repo -d 'A repository that the command may use, also as its URL at github.com; may be repeated' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand run" -l allow -d 'A host that is allowed besides those of the configuration: HOST, *.HOST, or HOST:PORT for that port alone; may be repeated' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand run" -l allow-host-port -d 'A port of this machine, at 127.0.0.1, that the command may send HTTP requests to, at the same port of its own loopback; may be repeated' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand run" -l mode -d 'Who pushes: user or bot' -r -f -a "user\t''
bot\t''"
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand run" -l config -d 'The directory of the configuration files [default: ~/.config/unified-proxy, /etc/unified-proxy, or the shipped allowlist]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand run" -l write -d 'A directory or file that the command may write to; may be repeated' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand run" -l read -d 'A directory or file that the command may read; may be repeated' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand run" -l learn -d 'Write an allowlist of every requested host to FILE, with --ask only of those that were reached; unlisted hosts are still denied, or asked about' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand run" -l server -d 'Use the running server with this admin socket instead of starting one for this run' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand run" -l with-logins -d 'Let the command use this user\'s logins of gh, claude, codex, gemini and opencode, and keys from the environment: the proxy injects them, the sandbox sees placeholders'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand run" -l ask -d 'Ask a person about unlisted hosts, who answers in another terminal with `unified-proxy approvals --watch`, instead of denying them'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand run" -l quiet -d 'Print only errors, and files of the command that the host would execute or obey'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand run" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand dev" -l config -d 'The directory of the configuration files' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand dev" -l repo -d 'A repository that `local` may use, also as its URL at github.com; may be repeated' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand dev" -l proxy-port -d 'The port of the proxy [default: 8080, or what proxy.yaml says]' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand dev" -l dns-port -d 'The port of DNS, for UDP and TCP [default: 5353, or what proxy.yaml says, or a free port if that is taken]' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand dev" -l mcp-port -d 'The port of the MCP gateway [default: 8090, or what proxy.yaml says]' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand dev" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand serve" -l config -d 'The directory of the configuration files [default: /etc/unified-proxy; except for serve, ./config if /etc/unified-proxy does not exist and `dev` has run here]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand serve" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand check" -l config -d 'The directory of the configuration files [default: /etc/unified-proxy; except for serve, ./config if /etc/unified-proxy does not exist and `dev` has run here]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand check" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand explain" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand explain" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand explain" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand tail" -l container -d 'Show only flows of this container' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand tail" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand tail" -l denied -d 'Show only denied flows'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand tail" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and not __fish_seen_subcommand_from add rm reset list show" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and not __fish_seen_subcommand_from add rm reset list show" -f -a "add" -d 'Register a container, replacing a lease with the same id or address'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and not __fish_seen_subcommand_from add rm reset list show" -f -a "rm" -d 'Unregister a container; its connections end'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and not __fish_seen_subcommand_from add rm reset list show" -f -a "reset" -d 'Lower a container\'s security level to Public, and lift the block of a deny_abort'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and not __fish_seen_subcommand_from add rm reset list show" -f -a "list" -d 'List the registered containers'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and not __fish_seen_subcommand_from add rm reset list show" -f -a "show" -d 'Show one container'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from add" -l ip -d 'The source address of the container\'s flows' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from add" -l listener -d 'Identify the container by a Unix socket that is opened for it, instead of an address' -r -f -a "unix\t''"
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from add" -l repo -d 'A repository that the container may use; may be repeated' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from add" -l auth-mode -d 'Who pushes: user or bot' -r -f -a "user\t''
bot\t''"
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from add" -l expires -d 'When the lease ends: an RFC 3339 time, or a duration from now such as 90m, 8h or 7d [default: 24h]' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from add" -l allow-domain -d 'A host pattern to which the allowlist is narrowed; may be repeated' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from add" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from add" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from add" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from rm" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from rm" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from rm" -l keep-level -d 'Keep the container\'s security level and the block of a deny_abort for its next lease, as after an expiry'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from rm" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from reset" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from reset" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from reset" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from list" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from list" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from show" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from show" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand container; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and not __fish_seen_subcommand_from list show approve deny forget grants learned grant revoke" -l exec -d 'Start a program for each new question, by a shell, with the question as JSON on its standard input' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and not __fish_seen_subcommand_from list show approve deny forget grants learned grant revoke" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and not __fish_seen_subcommand_from list show approve deny forget grants learned grant revoke" -l watch -d 'Show questions as they are asked; on a terminal, one at a time, to be answered'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and not __fish_seen_subcommand_from list show approve deny forget grants learned grant revoke" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and not __fish_seen_subcommand_from list show approve deny forget grants learned grant revoke" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and not __fish_seen_subcommand_from list show approve deny forget grants learned grant revoke" -f -a "list" -d 'List the questions that wait for a decision (the default)'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and not __fish_seen_subcommand_from list show approve deny forget grants learned grant revoke" -f -a "show" -d 'Show a question with its arguments'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and not __fish_seen_subcommand_from list show approve deny forget grants learned grant revoke" -f -a "approve" -d 'Approve a question'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and not __fish_seen_subcommand_from list show approve deny forget grants learned grant revoke" -f -a "deny" -d 'Deny a question; equal questions get the same answer for as long as it had to be decided'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and not __fish_seen_subcommand_from list show approve deny forget grants learned grant revoke" -f -a "forget" -d 'Let the questions that a denial answers be asked again'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and not __fish_seen_subcommand_from list show approve deny forget grants learned grant revoke" -f -a "grants" -d 'List the grants in force, also those for every container'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and not __fish_seen_subcommand_from list show approve deny forget grants learned grant revoke" -f -a "learned" -d 'List what is approved for every container'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and not __fish_seen_subcommand_from list show approve deny forget grants learned grant revoke" -f -a "grant" -d 'Permit a host and port to a container, without a question'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and not __fish_seen_subcommand_from list show approve deny forget grants learned grant revoke" -f -a "revoke" -d 'End a grant, also one for every container; tunnels that rely on it end within 5 seconds'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from list" -l exec -d 'Start a program for each new question, by a shell, with the question as JSON on its standard input' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from list" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from list" -l watch -d 'Show questions as they are asked; on a terminal, one at a time, to be answered'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from list" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from show" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from show" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from approve" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from approve" -l for -d 'For a time from 1s to 24h, such as 10m' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from approve" -l comment -d 'Words for the record' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from approve" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from approve" -l lease -d 'Until the lease of the container ends'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from approve" -l always -d 'For every container, in learned.yaml; for questions about hosts'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from approve" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from deny" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from deny" -l comment -d 'Words for the agent, which gets them with the denial' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from deny" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from deny" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from forget" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from forget" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from forget" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from grants" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from grants" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from grants" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from learned" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from learned" -l patch -d 'Print them as lines to add to `domains` in allowlist.yaml'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from learned" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from learned" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from grant" -l for -d 'For a time from 1s to 24h, such as 10m' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from grant" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from grant" -l lease -d 'Until the lease of the container ends'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from grant" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from grant" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from revoke" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from revoke" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand approvals; and __fish_seen_subcommand_from revoke" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and not __fish_seen_subcommand_from stdio list call accept policy" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and not __fish_seen_subcommand_from stdio list call accept policy" -f -a "stdio" -d 'Relay MCP between a client on stdin and stdout and the gateway'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and not __fish_seen_subcommand_from stdio list call accept policy" -f -a "list" -d 'List the tools that a container sees'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and not __fish_seen_subcommand_from stdio list call accept policy" -f -a "call" -d 'Call a tool'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and not __fish_seen_subcommand_from stdio list call accept policy" -f -a "accept" -d 'Accept the changed definition of a tool'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and not __fish_seen_subcommand_from stdio list call accept policy" -f -a "policy" -d 'Show the policy in force, or return to the bundle of mcp.yaml'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from stdio" -l url -d 'The gateway: http://HOST:PORT/mcp, or unix:PATH for a container\'s own socket [default: $UNIFIED_PROXY_MCP_URL, else http://127.0.0.1:8090/mcp]' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from stdio" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from list" -l container -d 'Act on behalf of this container, as an operator [default: act as the container in which the command runs]' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from list" -l url -d 'The gateway: http://HOST:PORT/mcp, or unix:PATH for a container\'s own socket [default: $UNIFIED_PROXY_MCP_URL, else http://127.0.0.1:8090/mcp]' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from list" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from list" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from call" -l container -d 'Act on behalf of this container, as an operator [default: act as the container in which the command runs]' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from call" -l url -d 'The gateway: http://HOST:PORT/mcp, or unix:PATH for a container\'s own socket [default: $UNIFIED_PROXY_MCP_URL, else http://127.0.0.1:8090/mcp]' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from call" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from call" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from call" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from accept" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from accept" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from accept" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from policy" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from policy" -f -a "show" -d 'Print the policy in force, and where it comes from'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand mcp; and __fish_seen_subcommand_from policy" -f -a "reset" -d 'Remove the policy that people set: the bundle of mcp.yaml is in force again'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand health" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand health" -l json -d 'Print JSON'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand health" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand env" -l shell -d 'Output format' -r -f -a "sh\t''
fish\t''
json\t''"
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand env" -l proxy -d 'The proxy as clients reach it, http://HOST:PORT [default: the running server\'s first listener]' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand env" -l certs -d 'Where clients have the server\'s certs_dir [default: its own path]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand env" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand env" -l config -d 'The server\'s configuration directory, whose proxy.yaml names the admin socket; --socket overrides it' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand env" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand sandbox-files" -l proxy -d 'The proxy as clients reach it, http://HOST:PORT [default: the running server\'s first listener]' -r
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand sandbox-files" -l certs -d 'Where clients have the server\'s certs_dir [default: its own path]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand sandbox-files" -l socket -d 'The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is there, else /var/run/proxy/api.sock]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand sandbox-files" -l config -d 'The server\'s configuration directory, whose proxy.yaml names the admin socket; --socket overrides it' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand sandbox-files" -l force -d 'Replace files that this command did not write'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand sandbox-files" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand registry; and not __fish_seen_subcommand_from check backup restore" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand registry; and not __fish_seen_subcommand_from check backup restore" -f -a "check" -d 'Check the registry\'s whole file for damage'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand registry; and not __fish_seen_subcommand_from check backup restore" -f -a "backup" -d 'Copy the registry to another file, also while a server runs'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand registry; and not __fish_seen_subcommand_from check backup restore" -f -a "restore" -d 'Replace the registry\'s contents with a backup, also while a server runs'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand registry; and __fish_seen_subcommand_from check" -l data-dir -d 'The server\'s data directory [default: ./.unified-proxy if it is there, else /var/lib/unified-proxy]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand registry; and __fish_seen_subcommand_from check" -l config -d 'The directory of the configuration files that name the data directory' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand registry; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand registry; and __fish_seen_subcommand_from backup" -l data-dir -d 'The server\'s data directory [default: ./.unified-proxy if it is there, else /var/lib/unified-proxy]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand registry; and __fish_seen_subcommand_from backup" -l config -d 'The directory of the configuration files that name the data directory' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand registry; and __fish_seen_subcommand_from backup" -l force -d 'Replace an existing file'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand registry; and __fish_seen_subcommand_from backup" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand registry; and __fish_seen_subcommand_from restore" -l data-dir -d 'The server\'s data directory [default: ./.unified-proxy if it is there, else /var/lib/unified-proxy]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand registry; and __fish_seen_subcommand_from restore" -l config -d 'The directory of the configuration files that name the data directory' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand registry; and __fish_seen_subcommand_from restore" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand run-appliance" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand sandbox-forwarder" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand sandbox-pid1" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand sandbox-enter" -l multiplexer -d 'The multiplexer of the sandbox\'s pseudo-terminals, as a path of the host' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand sandbox-enter" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand sandbox-session" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand sandbox-supervisor" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand sandbox-init" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand ca; and not __fish_seen_subcommand_from path show rotate" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand ca; and not __fish_seen_subcommand_from path show rotate" -f -a "path" -d 'Print the path of the CA\'s certificate'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand ca; and not __fish_seen_subcommand_from path show rotate" -f -a "show" -d 'Show the CA\'s certificate'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand ca; and not __fish_seen_subcommand_from path show rotate" -f -a "rotate" -d 'Replace the CA with a new one'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand ca; and __fish_seen_subcommand_from path" -l config -d 'The directory of the configuration files [default: /etc/unified-proxy; except for serve, ./config if /etc/unified-proxy does not exist and `dev` has run here]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand ca; and __fish_seen_subcommand_from path" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand ca; and __fish_seen_subcommand_from show" -l config -d 'The directory of the configuration files [default: /etc/unified-proxy; except for serve, ./config if /etc/unified-proxy does not exist and `dev` has run here]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand ca; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand ca; and __fish_seen_subcommand_from rotate" -l config -d 'The directory of the configuration files [default: /etc/unified-proxy; except for serve, ./config if /etc/unified-proxy does not exist and `dev` has run here]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand ca; and __fish_seen_subcommand_from rotate" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand audit; and not __fish_seen_subcommand_from verify" -s h -l help -d 'Print help'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand audit; and not __fish_seen_subcommand_from verify" -f -a "verify" -d 'Find out whether a line was changed or cut, and how many were folded or lost'
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand audit; and __fish_seen_subcommand_from verify" -l config -d 'The directory of the configuration files [default: /etc/unified-proxy; except for serve, ./config if /etc/unified-proxy does not exist and `dev` has run here]' -r -F
complete -c unified-proxy -n "__fish_unified_proxy_using_subcommand audit; and __fish_seen_subcommand_from verify" -s h -l help -d 'Print help'
