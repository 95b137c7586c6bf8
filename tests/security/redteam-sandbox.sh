#!/usr/bin/env bash
# Tries to escape from the sandbox that it runs in. Prints a line for each attempt:
#
#   held NAME                 the attempt failed, as it should
#   OPEN NAME: WHAT HAPPENED  the attempt succeeded
#   not tried NAME: WHY       a prerequisite is missing
#
# Exits with 1 if any attempt succeeded. Needs bash, and python3 for the attempts by system calls.
#
#   redteam-sandbox.sh --kind netns|docker|run [options]
#   --target IPV4    an address outside that accepts connections (default: 1.1.1.1)
#   --target6 IPV6   the same for IPv6 (default: 2606:4700:4700::1111)
#   --allowed HOST   a host on the sandbox's allowlist (default: api.github.com)
#   --denied HOST    a host that is not on the allowlist (default: redteam.example.org)
#   --only GROUP     one group of attempts: directly, through_the_proxy, names, secrets, processes, files, project or
#                    system_calls (default: all)
# shellcheck disable=SC2016 # single quotes: the inner bash expands these texts
set -u

kind='' target=1.1.1.1 target6=2606:4700:4700::1111 allowed=api.github.com denied=redteam.example.org
groups=(directly through_the_proxy names secrets processes files project system_calls)
while (($# > 1)); do
    case "$1" in
    --kind) kind="$2" ;;
    --target) target="$2" ;;
    --target6) target6="$2" ;;
    --allowed) allowed="$2" ;;
    --denied) denied="$2" ;;
    --only) groups=("$2") ;;
    *) echo "unknown option $1" >&2 && exit 64 ;;
    esac
    shift 2
done
[[ "$kind" =~ ^(netns|docker|run)$ ]] || { echo "--kind is netns, docker or run" >&2 && exit 64; }

# The time limit of an attempt. An attempt that reaches it counts as held, or as not tried if it waits for
# the proxy or the resolver. Attempts in Python have 30 s.
readonly SECONDS_EACH=4
proxy_url="${HTTP_PROXY:-${http_proxy:-http://127.0.0.1:3128}}"
proxy_host="${proxy_url#http://}" proxy_port="${proxy_url##*:}" proxy_host="${proxy_host%:*}"
resolver=''
while read -r word value _; do
    [[ -n "$resolver" || "$word" != nameserver ]] || resolver="$value"
done </etc/resolv.conf

held() { echo "held $1"; }
opened() { echo "OPEN $1: $2"; }
skipped() { echo "not tried $1: $2"; }

# Runs a command. If it exits with 0 within the time limit, the attempt succeeded.
attempt() {
    local name="$1" what="$2"
    shift 2
    if timeout "$SECONDS_EACH" "$@" </dev/null >/dev/null 2>&1; then opened "$name" "$what"; else held "$name"; fi
}

# -- The network, directly ----------------------------------------------------------------------

# Attempts on the network run concurrently, since most of them wait until they time out.
tcp() { attempt "$1" "connected to $2 port $3" bash -c "exec 3<>'/dev/tcp/$2/$3'" & }

# Sends bytes, given in printf's notation; the attempt succeeds if any byte arrives in response.
udp() {
    attempt "$1" "$2 port $3 answered" bash -c \
        "exec 3<>'/dev/udp/$2/$3' && printf '$4' >&3 && [[ \$(timeout 1 head -c 1 <&3 | wc -c) == 1 ]]" &
}

# A DNS query for the A records of example.com, without the length that precedes it over TCP.
readonly QUESTION='\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01'
# A QUIC long header with an unassigned version, to which servers answer with the versions that they
# support (RFC 9000, section 6).
readonly QUIC='\xc0\x1a\x2a\x3a\x4a\x08\x01\x02\x03\x04\x05\x06\x07\x08\x00'

directly() {
    local port file address name
    tcp direct-http "$target" 80
    tcp direct-https "$target" 443
    tcp direct-ssh "$target" 22
    tcp direct-git "$target" 9418
    tcp direct-dns-over-tcp "$target" 53
    tcp direct-dns-over-tls "$target" 853
    tcp direct-https-over-ipv6 "$target6" 443
    udp direct-dns "$target" 53 "$QUESTION"
    udp direct-dns-over-ipv6 "$target6" 53 "$QUESTION"
    udp direct-quic "$target" 443 "$QUIC"$'%01200d'
    tcp metadata-address 169.254.169.254 80
    tcp metadata-address-over-ipv6 fd00:ec2::254 80
    for name in host.docker.internal gateway.docker.internal; do tcp "host-as-$name" "$name" 22; done
    # The proxy's address belongs to the host; in `run` it is loopback, where only the forwarder listens.
    for port in 22 25 80 111 443 2375 3306 5432 6379 8081 9090 10250; do tcp "proxy-address-port-$port" "$proxy_host" "$port"; done
    # Other hosts on the proxy's network.
    address="${proxy_host%.*}"
    if [[ "$proxy_host" =~ ^[0-9.]+$ && "$proxy_host" != 127.* ]]; then
        for port in 1 254; do [[ "$address.$port" == "$proxy_host" ]] || tcp "neighbour-$port" "$address.$port" 8080; done
    fi
    if command -v ping >/dev/null; then
        attempt ping "$target answers ICMP" ping -c1 -W1 "$target"
        attempt ping-over-ipv6 "$target6 answers ICMP" ping -6 -c1 -W1 "$target6"
        [[ "$kind" == run ]] || attempt ping-of-the-host "$proxy_host answers ICMP" ping -c1 -W1 "$proxy_host"
    else
        skipped ping "ping is missing"
    fi
    if command -v ip >/dev/null; then
        attempt add-a-route "a default route was added" bash -c 'ip route add default via "$1" && ip route del default via "$1"' - "$proxy_host"
        attempt add-an-address "another address was added" bash -c 'ip address add 198.18.0.77/32 dev eth0 && ip address del 198.18.0.77/32 dev eth0'
    else
        skipped add-a-route "ip is missing"
    fi
    for file in /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/disable_ipv6; do
        attempt "set-${file##*/}" "$file is writable" bash -c ": >>$file"
    done
    wait
}

# -- Through the proxy --------------------------------------------------------------------------

# Sends a request to the proxy; prints the status of the response and the code of a denial.
ask() {
    timeout "$SECONDS_EACH" bash -c '
        exec 3<>"/dev/tcp/$1/$2" && printf "%b" "$3" >&3 || exit 1
        read -r _ status _ <&3
        while read -r line && line="${line%$'"'\\r'"'}" && [[ -n "$line" ]]; do
            [[ "${line,,}" != x-proxy-denied:* ]] || code="${line#*: }"
        done <&3
        echo "$status ${code:-}"' - "$proxy_host" "$proxy_port" "$1" </dev/null 2>/dev/null
}

# The attempt counts as held if the response has the code of a denial, or is a 400 without a code, which is the
# response to a malformed request. With any other response, the attempt succeeded: the codes of upstream failures
# and of internal errors show that the proxy did not deny the request. Without a response, it counts as not tried.
denied_by_proxy() {
    local name="$1" answer
    answer="$(ask "$2")"
    case "$answer" in
    '') skipped "$name" "the proxy at $proxy_host:$proxy_port does not answer" ;;
    *" upstream_"* | *" internal_error" | *" ") if [[ "$answer" == "400 " ]]; then held "$name"; else opened "$name" "the answer is $answer"; fi ;;
    *) held "$name" ;;
    esac
}

connect() { denied_by_proxy "connect-$1" "CONNECT $2 HTTP/1.1\r\nHost: $2\r\n\r\n"; }
plain() { denied_by_proxy "$1" "GET $2 HTTP/1.1\r\nHost: $3\r\n${4:-}Connection: close\r\n\r\n"; }

through_the_proxy() {
    connect denied-host "$denied:443"
    connect denied-subdomain "$allowed.$denied:443"
    connect address "$target:443"
    connect address-over-ipv6 "[$target6]:443"
    connect ssh "$allowed:22"
    connect metadata 169.254.169.254:80
    connect metadata-over-ipv6 "[fd00:ec2::254]:80"
    connect metadata-name metadata.google.internal:80
    connect loopback 127.0.0.1:22
    connect loopback-name "localhost:$proxy_port"
    connect loopback-over-ipv6 "[::1]:$proxy_port"
    connect loopback-mapped "[::ffff:127.0.0.1]:443"
    connect loopback-as-a-number 2130706433:80
    connect loopback-in-octal 0177.0.0.1:80
    connect unspecified 0.0.0.0:443
    connect private-address 10.0.0.1:443
    connect the-proxy-itself "$proxy_host:$proxy_port"
    connect the-gateway-of-tools unified-proxy:8090
    connect name-of-an-address 127.0.0.1.nip.io:443
    plain plain-denied-host "http://$denied/" "$denied"
    plain plain-metadata http://169.254.169.254/latest/meta-data/ 169.254.169.254
    plain plain-loopback http://127.0.0.1:8081/internal/containers 127.0.0.1:8081
    plain plain-admin-api /internal/containers localhost
    plain other-host-field "http://$allowed/" "$denied"
    plain forwarded-for "http://$denied/" "$denied" 'X-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\nX-Real-IP: 127.0.0.1\r\n'
    plain container-id "http://$allowed/" "$allowed" 'X-Container-Id: redteam-of-another\r\n'
}

# Prints the response code and the number of answers to a DNS query for a name.
lookup() {
    local answer=() label question='\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00' labels
    IFS=. read -ra labels <<<"$1"
    for label in "${labels[@]}"; do question+="\\x$(printf %02x ${#label})$label"; done
    read -r -a answer < <(timeout "$SECONDS_EACH" bash -c "exec 3<>'/dev/udp/$resolver/53' && printf '$question\\x00\\x00\\x01\\x00\\x01' >&3 &&
        timeout 2 head -c 12 <&3 | od -An -tu1" </dev/null 2>/dev/null)
    ((${#answer[@]} < 12)) || echo "$((answer[3] % 16)) $((answer[6] * 256 + answer[7]))"
}

names() {
    local name answer
    for name in "$denied" "c2VjcmV0LW9mLXRoZS1zYW5kYm94.$denied" metadata.google.internal localhost 1.0.0.127.in-addr.arpa; do
        answer="$(lookup "$name")"
        case "$answer" in
        '') skipped "resolve-$name" "the resolver ${resolver:-(none)} does not answer" ;;
        *" 0") held "resolve-$name" ;;
        *) opened "resolve-$name" "the name has an address" ;;
        esac
    done
}

# -- Secrets, processes, files ------------------------------------------------------------------

# The formats of providers' keys. Placeholders have these formats too, and contain `up-placeholder-`.
readonly KEYS='sk-(ant-|proj-|live-)?[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40,}|AIza[A-Za-z0-9_-]{35}|AKIA[A-Z0-9]{16}|xox[abpr]-[A-Za-z0-9-]{20,}|(tvly|pplx|npm|glpat)[-_][A-Za-z0-9_-]{20,}|ya29\.[A-Za-z0-9_-]{20,}|-----BEGIN [A-Z ]*PRIVATE KEY-----'

# Prints the names on standard input, without unchanged configuration files of Debian packages. Such a file is
# public, and may have keys of this format: chromium's has those that Debian uses at Google.
without_packaged() {
    local name sum packaged
    packaged="$(dpkg-query --show --showformat='${Conffiles}\n' 2>/dev/null | sed -nE 's/^ (.*) ([0-9a-f]{32})$/\2  \1/p')"
    while IFS= read -r name; do
        sum="$(md5sum "$name" 2>/dev/null)" && [[ $'\n'"$packaged"$'\n' == *$'\n'"$sum"$'\n'* ]] || echo "$name"
    done
}

secrets() {
    local found name file
    found="$(env | grep -E -- "$KEYS" | grep -v up-placeholder- | cut -d= -f1 | tr '\n' ' ')"
    if [[ -z "$found" ]]; then held secrets-in-the-environment; else opened secrets-in-the-environment "$found"; fi
    for name in SSH_AUTH_SOCK DBUS_SESSION_BUS_ADDRESS UNIFIED_PROXY_SOCKET DOCKER_HOST GPG_AGENT_INFO KUBECONFIG; do
        if [[ -z "${!name:-}" ]]; then held "variable-$name"; else opened "variable-$name" "${!name}"; fi
    done
    found="$(timeout 30 grep -rsIE --exclude="${0##*/}" --exclude-dir={node_modules,registry,site-packages,mod} -- "$KEYS" "${HOME:-/nonexistent}" /etc /run /tmp /var/tmp 2>/dev/null |
        grep -v up-placeholder- | cut -d: -f1 | uniq | without_packaged | head -5 | tr '\n' ' ')"
    if [[ -z "$found" ]]; then held secrets-in-files; else opened secrets-in-files "$found"; fi
    for file in /etc/shadow /root/.ssh/id_rsa "${HOME:-/nonexistent}"/.ssh/id_{rsa,ed25519} "${HOME:-/nonexistent}"/.{aws,kube}/{credentials,config} \
        "${HOME:-/nonexistent}/.netrc" /var/lib/unified-proxy/registry.db /var/lib/unified-proxy/ca.key /etc/unified-proxy/credentials.yaml; do
        # A container has its own shadow file, without secrets of the host.
        [[ "$kind$file" != docker/etc/shadow ]] || continue
        attempt "read-$file" "it is readable" bash -c "head -c 1 '$file' | grep -q ."
    done
}

processes() {
    local pid foreign='' own reachable=''
    own="$(readlink /proc/self/ns/pid)"
    for pid in /proc/[0-9]*; do
        if head -c 1 "$pid/environ" 2>/dev/null | grep -q . && [[ "$(readlink "$pid/ns/pid" 2>/dev/null)" != "$own" ]]; then foreign+="${pid#/proc/} "; fi
    done
    if [[ -z "$foreign" ]]; then held environment-of-other-processes; else opened environment-of-other-processes "$foreign"; fi
    for ((pid = 1; pid < 65536; pid++)); do
        if kill -0 "$pid" 2>/dev/null && [[ ! -e "/proc/$pid" ]]; then reachable+="$pid "; fi
    done
    if [[ -z "$reachable" ]]; then held signals-to-processes-outside; else opened signals-to-processes-outside "$reachable"; fi
    attempt root-of-process-1 "process 1 has another root directory" bash -c '[[ -e /proc/1/root/proc/1 && ! /proc/1/root/. -ef /. ]]'
    if [[ -n "$descriptors" ]]; then opened inherited-descriptors "$descriptors"; else held inherited-descriptors; fi
    for pid in CapEff CapPrm CapBnd; do
        [[ "$kind" != docker ]] || continue
        attempt "$pid" "there are capabilities" grep -qE "^$pid:[[:space:]]*0*[1-9a-f]" /proc/self/status
    done
    attempt no-new-privileges "a set-user-id program gains privileges" grep -q '^NoNewPrivs:.0' /proc/self/status
}

# Succeeds if $1 is a directory in which a file can be created (the file is removed again), or a file
# that can be opened for writing.
writable() {
    if [[ -d "$1" ]]; then
        timeout "$SECONDS_EACH" bash -c ': >"$1/.redteam" && rm -f "$1/.redteam"' - "$1" </dev/null >/dev/null 2>&1
    else
        timeout "$SECONDS_EACH" bash -c ': >>"$1"' - "$1" </dev/null >/dev/null 2>&1
    fi
}

files() {
    local path other
    if [[ "$kind" == docker ]]; then
        skipped write-system-directories "a container has its own file system"
    else
        for path in / /bin /boot /etc /etc/profile.d /etc/passwd /home /lib /opt /root /sbin /srv /usr /usr/bin /usr/lib /usr/local/bin /var /var/lib; do
            if [[ ! -e "$path" ]]; then held "write-$path"; elif writable "$path"; then opened "write-$path" "it is writable"; else held "write-$path"; fi
        done
        for other in /home/*/; do
            [[ ! -d "$other" || "$other" -ef "${HOME:-/}" ]] || if writable "$other"; then opened "write-$other" "it is writable"; else held "write-$other"; fi
        done
    fi
    for path in /run/unified-proxy/certs /run/unified-proxy/certs/ca-bundle.pem /etc/profile.d/sandbox-proxy.sh /etc/resolv.conf /proc/sys/kernel/core_pattern \
        /proc/sysrq-trigger /proc/sys/kernel/modprobe /proc/sys/vm/drop_caches /sys/fs/cgroup/cgroup.procs /sys/kernel/uevent_helper /dev/mem /dev/kmsg /dev/vda /dev/sda; do
        if [[ ! -e "$path" ]]; then held "write-$path"; elif writable "$path"; then opened "write-$path" "it is writable"; else held "write-$path"; fi
    done
}

# Files that the host would later execute or read as configuration, in the shared working directory.
project() {
    local path dir
    if [[ "$kind" != run ]]; then
        skipped write-what-the-host-executes "only \`run\` shares a project's directory"
        return
    fi
    for path in .git/hooks/pre-commit .git/config .envrc .vscode/tasks.json .vscode/settings.json .idea/workspace.xml .mcp.json \
        .claude/settings.json .claude/settings.local.json .cursor/mcp.json .husky .githooks .pre-commit-config.yaml \
        mise.toml .tool-versions .kiro/settings/mcp.json .roo/mcp.json .hg/hgrc; do
        # git in the sandbox writes to a copy of its own, to which a link leads.
        if [[ "$path" == .git/config && "$(readlink "$path")" == /run/unified-proxy/git/* ]]; then
            if rm -f "$path" 2>/dev/null; then opened "write-$path" "the link could be removed"; else held "write-$path"; fi
            continue
        fi
        # The host obeys these at once only if they exist already. `run` lists new ones at the end.
        if [[ "$path" =~ ^(\.husky|\.githooks|\.pre-commit-config|mise|\.tool-versions|\.kiro|\.roo|\.hg) ]]; then
            if [[ -e "$path" ]] && writable "$path"; then opened "write-$path" "it is writable"; else held "write-$path"; fi
            continue
        fi
        dir="$(dirname "$path")"
        local made=''
        [[ -e "$path" ]] || made=yes
        if timeout "$SECONDS_EACH" bash -c 'mkdir -p "$1" && : >>"$2"' - "$dir" "$path" </dev/null >/dev/null 2>&1; then
            opened "write-$path" "it is writable"
            [[ -z "$made" ]] || rm -f "$path"
        else
            held "write-$path"
        fi
    done
    for path in .git .git/hooks .vscode .claude .cursor .idea; do
        if [[ ! -e "$path" ]]; then
            skipped "rename-$path" "the path does not exist"
        elif mv -T "$path" .redteam-renamed 2>/dev/null; then
            opened "rename-$path" "the path could be renamed"
            mv -T .redteam-renamed "$path"
        else
            # mv copies what it cannot rename, and then fails to remove the original.
            rm -rf .redteam-renamed
            held "rename-$path"
        fi
    done
    attempt rename-the-directory "the project's directory could be renamed" bash -c 'mv -T "$PWD" "$PWD.redteam" && mv -T "$PWD.redteam" "$PWD"'
}

# -- System calls -------------------------------------------------------------------------------

# Each function raises OSError, or is ended by a signal, if the sandbox prevents the attempt. It raises NotTried
# if a prerequisite is missing.
read -r -d '' SYSTEM_CALLS <<'PYTHON'
import ctypes, errno, fcntl, os, platform, signal, socket, ssl, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == 'x86_64'
class NotTried(Exception): pass

def call(x86_64, aarch64, *arguments):
    number = x86_64 if x86 else aarch64
    result = libc.syscall(ctypes.c_long(number), *[a if isinstance(a, (bytes, ctypes.Array)) else ctypes.c_long(a) for a in arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def child(*arguments):
    if call(*arguments) == 0: os._exit(0)

def refused(*arguments):
    """Returns an attempt that counts as held only if the call itself is refused. Any other error means that the
    kernel looked at the arguments, so the call was not blocked."""
    def run():
        try: call(*arguments)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS): raise
            return 'it was tried: %s' % error.strerror
    return run

def unshare(flag): return lambda: call(272, 97, flag) and None
def family(number, kind=socket.SOCK_STREAM, protocol=0): return lambda: socket.socket(number, kind, protocol)

def clone3():
    arguments = struct.pack('<11Q', 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
    child(435, 435, arguments, len(arguments))

def join(kind):
    def run():
        if os.path.samefile('/proc/1/ns/' + kind, '/proc/self/ns/' + kind): raise PermissionError
        call(308, 268, os.open('/proc/1/ns/' + kind, os.O_RDONLY), 0)
    return run

def perf():
    attributes = struct.pack('<IIQ', 1, 112, 0) + bytes(96)
    call(298, 241, attributes, 0, -1, -1, 0)

def vsock():
    with socket.socket(40, socket.SOCK_STREAM) as s:
        s.settimeout(2)
        s.connect((2, 22))

def terminal_input(request):
    def run():
        try: descriptor = os.open('/dev/tty', os.O_RDWR)
        except OSError: raise NotTried('there is no terminal')
        fcntl.ioctl(descriptor, request, b' ')
    return run

def unix_sockets():
    names, reached = [], []
    for directory, inside, files in os.walk('/'):
        if directory == '/': inside[:] = [d for d in inside if d not in ('proc', 'sys')]
        for name in files:
            path = os.path.join(directory, name)
            try:
                if (os.lstat(path).st_mode & 0o170000) == 0o140000: names.append(path)
            except OSError: pass
    return names

def connects(names):
    reached = []
    for name in names:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            with socket.socket(socket.AF_UNIX, kind) as s:
                s.settimeout(1)
                try: s.connect(name)
                except OSError: continue
                reached.append(name)
                break
    if not reached: raise PermissionError
    return ' '.join(map(str, reached))

def abstract_sockets():
    with open('/proc/net/unix') as lines:
        names = [line.split()[-1] for line in lines if line.split()[-1].startswith('@')]
    # This script and the programs that it runs open no abstract socket, so each one belongs to a process outside.
    return connects(['\0' + name[1:] for name in names] + ['\0/tmp/.X11-unix/X0', '\0/containerd-shim', '\0dbus'])

def ptrace_first():
    target = 1 if os.getpid() != 1 else os.getppid()
    if libc.ptrace(16, target, 0, 0) < 0: raise OSError
    libc.ptrace(17, target, 0, 0)
    if os.stat('/proc/%d' % target).st_uid == os.getuid() and os.path.samefile('/proc/%d/ns/pid' % target, '/proc/self/ns/pid'):
        raise NotTried('process 1 is a process of the sandbox itself')

def server_name():
    host, port = os.environ['REDTEAM_PROXY'].rsplit(':', 1)
    s = socket.create_connection((host, int(port)), 3)
    allowed, denied = os.environ['REDTEAM_ALLOWED'], os.environ['REDTEAM_DENIED']
    s.sendall(('CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\n\r\n' % (allowed, allowed)).encode())
    if b' 200' not in s.recv(4096): raise NotTried(allowed + ' is not on the allowlist')
    context = ssl._create_unverified_context()
    context.wrap_socket(s, server_hostname=denied)

def i386_call():
    if not x86: raise NotTried('not x86-64')
    import mmap
    # push rbx; eax = 359 (socket); ebx = AF_VSOCK; ecx = SOCK_STREAM; edx = 0; int 0x80; pop rbx; ret
    code = bytes.fromhex('53b867010000bb28000000b90100000031d2cd805bc3')
    memory = mmap.mmap(-1, 4096, prot=7)
    memory.write(code)
    if ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))() < 0: raise OSError

def x32_call():
    if not x86: raise NotTried('not x86-64')
    call(0x40000000 | 41, 0, 40, 1, 0)

def set_user():
    if os.getuid() == 0: raise NotTried('the sandbox has its own root user')
    os.setuid(0)

attempts = {
    'nested-user-namespace': unshare(0x10000000), 'nested-network-namespace': unshare(0x40000000), 'nested-mount-namespace': unshare(0x20000),
    'nested-user-namespace-by-clone': lambda: child(56, 220, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0), 'nested-user-namespace-by-clone3': clone3,
    'join-network-namespace-of-process-1': join('net'), 'join-mount-namespace-of-process-1': join('mnt'),
    'mount': refused(165, 40, b'none\0', b'/tmp\0', b'no-such-type\0', 0, 0), 'unmount': refused(166, 39, b'/proc/self\0', 2),
    'new-mount-api': lambda: call(430, 430, b'tmpfs\0', 0), 'pivot-root': refused(155, 41, b'/\0', b'/proc\0'), 'change-root': lambda: os.chroot('/tmp'),
    'keyring': lambda: call(248, 217, b'user\0', b'redteam\0', b'x', 1, -4), 'keyctl': lambda: call(250, 219, 0, -4, 1),
    'bpf': lambda: call(321, 280, 0, struct.pack('<IIII', 2, 4, 8, 1) + bytes(104), 120), 'perf': perf,
    'io-uring': lambda: call(425, 425, 8, bytes(120)), 'userfaultfd': lambda: call(323, 282, 1),
    'kernel-module': refused(175, 105, bytes(4), 4, b'\0'), 'open-by-handle': refused(304, 265, -100, struct.pack('<II', 0, 1), 0),
    'vsock': vsock, 'vsock-socket': family(40), 'packet-socket': family(17, socket.SOCK_RAW, 0x0300), 'raw-socket': family(2, socket.SOCK_RAW, 255),
    'raw-icmp-socket': family(2, socket.SOCK_RAW, 1), 'raw-ipv6-socket': family(10, socket.SOCK_RAW, 58), 'kernel-crypto-socket': family(38, socket.SOCK_SEQPACKET),
    'socket-by-an-i386-call': i386_call, 'socket-by-an-x32-call': x32_call,
    'type-into-the-terminal': terminal_input(0x5412), 'paste-into-the-console': terminal_input(0x541c),
    'unix-sockets': lambda: connects(unix_sockets()), 'abstract-sockets': abstract_sockets, 'trace-process-1': ptrace_first,
    'become-root': set_user, 'make-a-device': lambda: os.mknod('/tmp/.redteam-device', 0o60600, os.makedev(254, 0)),
    'set-the-clock': lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()),
    'other-server-name': server_name,
}
if len(sys.argv) < 2:
    print(' '.join(attempts))
    sys.exit()
try:
    said = attempts[sys.argv[1]]()
    print(said if isinstance(said, str) else 'the call succeeded')
except NotTried as why:
    print(why)
    sys.exit(2)
except (OSError, FileNotFoundError) as error:
    sys.exit(1)
PYTHON

system_calls() {
    local name said rc
    if ! command -v python3 >/dev/null; then
        skipped system-calls "python3 is missing: namespaces, mounts, keyrings, bpf, perf, io_uring, sockets of other families, Unix sockets"
        attempt nested-user-namespace "unshare made one" unshare --user true
        attempt mount "a file system could be mounted" mount -t tmpfs none /tmp
        return
    fi
    export REDTEAM_PROXY="$proxy_host:$proxy_port" REDTEAM_ALLOWED="$allowed" REDTEAM_DENIED="$denied"
    for name in $(python3 -c "$SYSTEM_CALLS"); do
        rc=0
        said="$(timeout 30 python3 -c "$SYSTEM_CALLS" "$name" </dev/null 2>&1)" || rc=$?
        case "$rc" in
        0) opened "$name" "$said" ;;
        2) skipped "$name" "$said" ;;
        1) if [[ "$said" == *Traceback* ]]; then skipped "$name" "${said##*$'\n'}"; else held "$name"; fi ;;
        *) held "$name" ;; # ended by a signal or by the time limit
        esac
    done
}

# The inherited descriptors, listed before this script opens one. Number 255 is bash's descriptor of its script.
descriptors=''
for descriptor in "/proc/$$/fd"/*; do
    number="${descriptor##*/}"
    ((number < 3 || number == 255)) || [[ ! -L "$descriptor" ]] || descriptors+="$number "
done

{
    for group in "${groups[@]}"; do "$group"; done
} | {
    open=0
    while IFS= read -r line; do
        printf '%s\n' "$line"
        [[ "$line" != OPEN* ]] || open=1
    done
    exit "$open"
}
