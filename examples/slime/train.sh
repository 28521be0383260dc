#!/bin/sh
# GRPO with slime on two nodes of 8 GPUs. Each version is a delta on the volume.
set -eu
START=$(date +%Y%m%d-%H%M%S) # slime empties the folder of versions when it starts
export PYTHONPATH="$(cd "$(dirname "$0")" && pwd)${PYTHONPATH:+:$PYTHONPATH}"
exec python3 train_async.py \
  --update-weight-mode delta \
  --update-weight-transport disk \
  --update-weight-disk-dir "${RUN_DIRECTORY:-/weights/slime-$START}" \
  --update-weight-local-checkpoint-dir /local/rollout-checkpoint \
  --custom-update-weight-post-write-path publish.publish \
  --hf-checkpoint /weights/base \
  "$@"
