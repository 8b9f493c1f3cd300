# What `helm test` runs: a hundred lines go in through the write proxy's service and come back, byte for byte and in
# their order, through the read proxy's. Environment: LOG, WRITE_URL, READ_URL; where the cluster asks who calls,
# DURAMEN_CA, and DURAMEN_TOKEN_FILE if there is a token for it: else nobody may be let in.
set -eu
cd /tmp
if [ -n "${DURAMEN_CA:-}" ] && [ -z "${DURAMEN_TOKEN_FILE:-}" ]; then
  for url in "$WRITE_URL" "$READ_URL"; do
    if duramen read "$LOG" --from tail-1 --url "$url" > found 2> said; then
      echo "$url let in somebody without a token"; exit 1
    fi
    grep -q unauthenticated said || { cat said; exit 1; }
  done
  echo "both proxies show a certificate that is trusted, and let nobody in without a token"
  exit 0
fi
run="$(cat /proc/sys/kernel/hostname)-$(date +%s)"
i=0
while [ "$i" -lt 100 ]; do
  echo "helm test $run line $i"
  i=$((i + 1))
done > sent

duramen namespace create "${LOG%%/*}" --url "$WRITE_URL" || echo "namespace: left as it is"
duramen append "$LOG" sent --create --url "$WRITE_URL"
# A read proxy may answer a moment later than the write proxy: a few looks, then it is a fault.
looks=0
same() { [ "$(sha256sum < sent)" = "$(sha256sum < found)" ]; }
until duramen read "$LOG" --from tail-100 --url "$READ_URL" > found && same; do
  looks=$((looks + 1))
  [ "$looks" -lt 10 ] || { echo "not what was appended:"; head -5 found; exit 1; }
  sleep 1
done
echo "100 records of 100 appended to $LOG came back as they were sent"
