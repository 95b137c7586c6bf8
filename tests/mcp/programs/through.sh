# The client of the suite's client leg: names the suite's server ($1) to the test, waits for the
# gateway that the test starts before it, and runs the client on the gateway.
printf '%s' "$1" >"$MEETING/server.part" && mv "$MEETING/server.part" "$MEETING/server"
until [ -e "$MEETING/gateway" ]; do
    sleep 0.05
done
"$PYTHON" "$CLIENT" "$(cat "$MEETING/gateway")"
status=$?
: >"$MEETING/done"
exit "$status"
