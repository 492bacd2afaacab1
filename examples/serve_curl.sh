#!/bin/sh
# A server asked with curl: adapler serve MODEL, then sh examples/serve_curl.sh [ADDRESS]
set -eu
server=${1:-http://127.0.0.1:8080}
ask() { curl -sS --fail-with-body "$server$1" -H 'content-type: application/json' ${API_KEY:+-H "authorization: Bearer $API_KEY"} -d "$2"; echo; }

ask /predict '{"inputs": "a warm and funny film"}'                            # all labels, best first
ask /predict '{"inputs": ["a warm film", "a cold film"]}'                     # one pair
ask /predict '{"inputs": [["a warm film"], ["a cold film"]]}'                 # a batch of two
ask /predict '{"inputs": [["a warm film"], [""]], "partial": true}'           # the error in its place
ask /explain '{"inputs": "a warm and funny film"}'                            # where each token left
curl -sS -o /dev/null -D - "$server/predict" -H 'content-type: application/json' ${API_KEY:+-H "authorization: Bearer $API_KEY"} \
  -d '{"inputs": "a warm and funny film"}' | grep -i '^x-'                    # tokens kept, FLOPs spent, times
