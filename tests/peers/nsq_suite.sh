# A foreign suite that wants its daemons on fixed ports, in a network of its own.   sh nsq_suite.sh FOLDER nsqd|- command…
# With "nsqd" a registry and a daemon run beside it, as go-nsq's test.sh starts them; FOLDER is for what they write.
ip link set lo up
folder=$1 daemons=$2
shift 2
if [ "$daemons" = nsqd ]; then
    nsqlookupd >"$folder/nsqlookupd.log" 2>&1 &
    registry=$!
    nsqd --data-path="$folder" --lookupd-tcp-address=127.0.0.1:4160 --tls-cert=./test/server.pem \
        --tls-key=./test/server.key --tls-root-ca-file=./test/ca.pem >"$folder/nsqd.log" 2>&1 &
    daemon=$!
    for _ in $(seq 100); do
        grep -q 'HTTPS: listening' "$folder/nsqd.log" && grep -q 'HTTP: listening' "$folder/nsqlookupd.log" && break
        sleep 0.1
    done
    "$@"
    code=$?
    kill "$daemon" "$registry"
    wait
    exit $code
fi
exec "$@"
