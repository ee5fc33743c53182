#!/usr/bin/env bash
# Try a built image where there is no container engine: `deploy/image/try.sh [TAG]`, as root.
#
# Each container is a few namespaces around the image's entrypoint: its user without any capability,
# a read-only root with the volume on /data, its own process 1, and no network but loopback, which
# they share as in a pod.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "${1:-}" != --inside ]; then
    exec unshare --mount --net "$0" --inside "$@"
fi
ip link set lo up
umask 022 # what engines of containers give; the image has to do better by itself

work=$(mktemp -d)
container=$(buildah from --pull=never "${2:-hms-memory-gateway}")
declare -A namespaces process
trap clean_up EXIT

clean_up() {
    local one
    for one in "${namespaces[@]}"; do
        pkill -KILL --parent "$one" || true
    done
    wait
    if mountpoint -q "$work/root"; then
        umount --recursive "$work/root"
    fi
    buildah rm "$container" >/dev/null
    rm -r "$work"
}

say() {
    printf '%(%T)T %s\n' -1 "$*"
}

fail() {
    say "FAILED: $*"
    find "$work" -maxdepth 1 -name '*.log' -exec tail -n 20 {} +
    exit 1
}

# configured FIELD: a list of the image's configuration, an item a line.
configured() {
    buildah inspect --format "{{range .Docker.Config.$1}}{{println .}}{{end}}" "$container" |
        sed '/^$/d'
}

mapfile -t variables < <(configured Env)
mapfile -t entrypoint < <(configured Entrypoint)
mapfile -t gateway < <(configured Cmd)
mapfile -t health < <(configured Healthcheck.Test | sed 1d)
mapfile -t engine < <(sed -n '/^      - hms-mcp$/,/^    [a-z]/s/^      - //p' compose.yaml)
user=$(buildah inspect --format '{{.Docker.Config.User}}' "$container")
[ "${user%:*}" -gt 0 ] || fail "it runs as root"

root=$work/root
data=$work/data
mkdir "$root"
install -d -m 0700 -o "${user%:*}" -g "${user#*:}" "$data"
mount --bind "$(buildah mount "$container")" "$root"
mkdir "$root/example"
echo 127.0.0.1 localhost engine >"$root/etc/hosts"
mount -o remount,bind,ro "$root"
mount --bind examples "$root/example"
mount --bind "$data" "$root/data"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/dev"
touch "$root/dev/null"
mount --bind /dev/null "$root/dev/null"

# become VARIABLE=VALUE... -- COMMAND...: make this shell a container.
become() {
    local given=()
    while [ "$1" != -- ]; do
        given+=("$1")
        shift
    done
    shift
    # shellcheck disable=SC2016 # it is for the shell in the namespaces
    exec unshare --mount --pid --fork \
        sh -c 'mount -t proc proc "$1/proc" && exec chroot "$@"' sh "$root" \
        setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups \
        --no-new-privs --inh-caps=-all --bounding-set=-all \
        env -i "${variables[@]}" "${given[@]}" "${entrypoint[@]}" "$@"
}

# start NAME VARIABLE=VALUE... -- COMMAND...: a container in the background.
start() {
    become "${@:2}" >"$work/$1.log" 2>&1 &
    namespaces[$1]=$!
}

# await NAME [ARGUMENT...]: until the image's health check, with these arguments, is content.
await() {
    local name=$1
    for _ in {1..60}; do
        if (become -- "${health[@]}" "${@:2}") >/dev/null 2>&1; then
            process[$name]=$(pgrep --parent "${namespaces[$name]}")
            return
        fi
        kill -0 "${namespaces[$name]}" 2>/dev/null || fail "$name has ended"
        sleep 0.5
    done
    fail "$name is not ready after 30 s"
}

# stop NAME: as engines of containers do, by a signal to process 1.
stop() {
    local since=$SECONDS status=0
    kill -TERM "${process[$1]}"
    wait "${namespaces[$1]}" || status=$?
    unset "namespaces[$1]"
    [ "$status" = 0 ] || fail "$1 ended with $status"
    if grep Traceback "$work/$1.log"; then
        fail "$1 ended with an error in its log"
    fi
    say "  $1 stopped within $((SECONDS - since + 1)) s, with exit code 0"
}

# check_process NAME: what process 1 is, and what it and its child may do.
check_process() {
    local one server
    [ "$(cat "/proc/${process[$1]}/comm")" = tini ] || fail "process 1 is not tini"
    server=$(pgrep --parent "${process[$1]}")
    for one in "${process[$1]}" "$server"; do
        grep -q "^Uid:	${user%:*}	${user%:*}	" "/proc/$one/status" || fail "the user is another"
        grep -q '^CapBnd:	0000000000000000$' "/proc/$one/status" || fail "it has capabilities"
    done
    grep -q '^Umask:	0077$' "/proc/$server/status" || fail "the umask is another"
}

check_files() {
    local open
    open=$(find "$data" ! \( -type d -perm 0700 \) ! \( -type f -perm 0600 \))
    [ -z "$open" ] || fail "others can read $open"
    [ -n "$(find "$data" -path '*/stores/*' -type f)" ] || fail "nothing is in the volume"
    say "  $(find "$data" -type f | wc -l) files in the volume, for their owner alone"
}

# Each command of the README's first session prints what the README says.
check_session() {
    local line request='' number=0
    # shellcheck disable=SC2016 # the backquotes are the README's
    while IFS= read -r line; do
        if [[ $line = '$ '* ]]; then
            request=${line#??}
        elif [ -n "$line" ]; then
            [ "$(bash -c "$request")" = "$line" ] || fail "another answer: $request"
            number=$((number + 1))
        fi
    done < <(sed -n '/^## A first session/,/^## In/{/^```console/,/^```$/{/^```/d;p}}' README.md)
    [ "$number" -gt 5 ] || fail "the README has $number commands"
    say "  $number commands of the README answer as printed"
}

# check_agent VARIABLE=VALUE...: the example agent remembers.
check_agent() {
    local said
    said=$(become "$@" -- python /example/agent.py) || fail "the agent failed: $said"
    [[ $said = *$'What was remembered:\n/memories/customers/acme.md\n# Acme Corp\nPrefers email'* ]] ||
        fail "the agent does not remember: $said"
    say "  the example agent remembers"
}

say "on all addresses without a token"
start open -- "${gateway[@]}"
timeout 20 tail --pid "${namespaces[open]}" -f /dev/null || fail "it serves strangers"
unset "namespaces[open]"
grep -q 'there is no token' "$work/open.log" || fail "it does not say why it ends"
say "  refused"

say "a sidecar: on loopback, without a token"
start gateway HMS_GATEWAY_HOST=127.0.0.1 -- "${gateway[@]}"
await gateway
check_process gateway
if touch "$root/opt/written" 2>"$work/touch.log" || ! grep -q 'Read-only' "$work/touch.log"; then
    fail "the root is not read-only"
fi
check_session
check_agent
check_files
stop gateway

say "the same volume again: on all addresses, with a token"
start gateway HMS_GATEWAY_TOKEN=a-token -- "${gateway[@]}"
await gateway
view=(curl -s localhost:8080/memory/command -H 'X-Memory-Namespace: alice@example.com'
    -d '{"command": "view", "path": "/memories/customers/acme.md"}')
[[ $("${view[@]}") = *'"unauthorized"'* ]] || fail "the token is not asked for"
[[ $("${view[@]}" -H 'Authorization: Bearer a-token') = *'Prefers phone'* ]] || fail "it forgot"
check_agent HMS_GATEWAY_TOKEN=a-token
stop gateway

say "a shared engine, started as compose.yaml does"
find "$data" -mindepth 1 -delete
start engine HMS_MCP_TOKEN=a-token-of-sixteen -- "${engine[@]}"
await engine 8765 /health
check_process engine
start gateway HMS_GATEWAY_HOST=127.0.0.1 HMS_GATEWAY_HMS_URL=http://engine:8765/mcp \
    HMS_MCP_TOKEN=a-token-of-sixteen -- "${gateway[@]}"
await gateway
check_session
check_agent
check_files
stop gateway
stop engine
say "all of it works"
