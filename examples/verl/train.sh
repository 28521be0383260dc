#!/bin/sh
# GRPO with verl on one node of 8 GPUs. Every tenth step is saved and published.
set -eu
RUN=${RUN_DIRECTORY:-/weights/run-1}
export PYTHONPATH="$(dirname "$0")${PYTHONPATH:+:$PYTHONPATH}" # where verl finds publish.py
exec python3 -m verl.trainer.main_ppo \
  trainer.default_local_dir="$RUN" \
  trainer.save_freq=10 \
  trainer.checkpoint_callback_class=publish.PublishToFleet \
  actor_rollout_ref.actor.checkpoint.save_contents='[model,optimizer,extra,hf_model]' \
  algorithm.adv_estimator=grpo \
  data.train_files=/data/gsm8k/train.parquet \
  data.val_files=/data/gsm8k/test.parquet \
  data.train_batch_size=1024 \
  data.max_prompt_length=512 \
  data.max_response_length=1024 \
  actor_rollout_ref.model.path=/weights/base \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.actor.ppo_mini_batch_size=256 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 \
  actor_rollout_ref.actor.use_kl_loss=true \
  actor_rollout_ref.actor.kl_loss_coef=0.001 \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=5 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32 \
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32 \
  trainer.logger='[console]' \
  trainer.project_name=rlfleet \
  trainer.experiment_name=grpo \
  trainer.n_gpus_per_node=8 \
  trainer.nnodes=1 \
  trainer.total_epochs=15 \
  "$@"
