# The client that the conformance suite starts: passes the URL of the suite's server ($1) to the test, waits
# for the gateway with which the test mounts that server, and runs the client with the gateway's URL.
printf '%s' "$1" >"$MEETING/server.part" && mv "$MEETING/server.part" "$MEETING/server"
until [ -e "$MEETING/gateway" ]; do
    sleep 0.05
done
"$PYTHON" "$CLIENT" "$(cat "$MEETING/gateway")"
status=$?
: >"$MEETING/done"
exit "$status"
