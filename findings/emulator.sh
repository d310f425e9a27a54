#!/usr/bin/env bash
# AWS' runtime interface emulator answers a function that has failed as one that has not, or with nothing.
#
# Version v0.0.0-20261030222936-bef5c4ba774d. Lambda answers both cases below with status 200, the header
# X-Amz-Function-Error and an object with errorType and errorMessage. From the emulator a client receives, without that
# header: for a function that passes its timeout, status 200 and a plain sentence, which is no JSON; for a runtime that
# exits while it starts, status 502 and an empty body, although the emulator's log has Runtime.ExitError.
#
# Seen:
#   timeout: 200 [Task timed out after 1.00 seconds]
#   exit: 502 []
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
GOBIN="$folder" CGO_ENABLED=0 go install \
    github.com/aws/aws-lambda-runtime-interface-emulator/cmd/aws-lambda-rie@v0.0.0-20261030222936-bef5c4ba774d

answer() { # PORT RUNTIME...
    local port=$1 emulator
    AWS_LAMBDA_FUNCTION_TIMEOUT=1 "$folder/aws-lambda-rie" --runtime-api-address "127.0.0.1:$((port + 1))" \
        --runtime-interface-emulator-address "127.0.0.1:$port" "${@:2}" >/dev/null 2>&1 &
    emulator=$!
    curl -s --retry 50 --retry-connrefused --retry-delay 1 -D "$folder/headers" -o "$folder/body" -w '%{http_code}' -d '{}' \
        "http://127.0.0.1:$port/2015-03-31/functions/function/invocations"
    ! grep -qi '^x-amz' "$folder/headers" || echo -n ' with headers of the API'
    echo " [$(cat "$folder/body")]"
    kill "$emulator"
    wait "$emulator" || true
}

timeout=$(answer 38211 sleep 30)
exit=$(answer 38221 sh -c 'exit 4')
echo "timeout: $timeout"
echo "exit: $exit"
[ "$timeout" = "200 [Task timed out after 1.00 seconds]" ]
[ "$exit" = "502 []" ]
