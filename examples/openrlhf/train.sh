#!/bin/sh
# REINFORCE++ with a baseline, by OpenRLHF on one node of 8 GPUs. Every tenth step is saved.
set -eu
RUN=${RUN_DIRECTORY:-/weights/run-1}
exec python3 -m openrlhf.cli.train_ppo_ray \
  --ckpt.path "$RUN" \
  --ckpt.save_steps 10 \
  --ckpt.save_hf \
  --ckpt.max_num 2 \
  --ckpt.output_dir "$RUN/last" \
  --actor.model_name_or_path /weights/base \
  --reward.remote_url http://reward.rl.svc:5000/get_reward \
  --data.prompt_dataset OpenRLHF/prompt-collection-v0.1 \
  --data.input_key context_messages \
  --data.apply_chat_template \
  --data.max_len 2048 \
  --rollout.max_new_tokens 1024 \
  --rollout.batch_size 128 \
  --rollout.n_samples_per_prompt 8 \
  --train.batch_size 128 \
  --train.colocate_all \
  --algo.advantage.estimator reinforce_baseline \
  --algo.kl.init_coef 1e-5 \
  --actor.adam.lr 5e-7 \
  --actor.num_nodes 1 \
  --actor.num_gpus_per_node 8 \
  --actor.gradient_checkpointing_enable \
  --ref.num_nodes 1 \
  --ref.num_gpus_per_node 8 \
  --vllm.num_engines 4 \
  --vllm.tensor_parallel_size 2 \
  --vllm.gpu_memory_utilization 0.6 \
  --vllm.enable_sleep \
  --ds.enable_sleep \
  --ds.zero_stage 3 \
  --ds.packing_samples \
  "$@"
