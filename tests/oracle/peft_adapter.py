"""Writes tests/data/peft: a tiny llama, adapters for it that PEFT saved, and the
logits that PEFT computes with each.

usage: peft_adapter.py OUT   (needs torch, peft and transformers)

  model/           f32 checkpoint
  plain/           rank 4, alpha 8
  patterns/        rank_pattern and alpha_pattern
  rslora_f16/      use_rslora with patterns, factors stored in f16
  expected.safetensors   input_ids [1, T], logits.base and logits.<adapter>
"""
import json
import shutil
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

ADAPTERS = {
    "plain": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj", "lm_head"]),
    "patterns": dict(
        r=4, lora_alpha=6,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"],
        rank_pattern={"layers.1.self_attn.q_proj": 2, "k_proj": 3},
        alpha_pattern={r"layers\.\d+\.mlp\.gate_proj": 10, "v_proj": 6.5}),
    "rslora_f16": dict(
        r=4, lora_alpha=8, use_rslora=True,
        target_modules=["q_proj", "o_proj", "down_proj"],
        rank_pattern={"o_proj": 3}, alpha_pattern={"down_proj": 16}),
}


def main(out):
    shutil.rmtree(out, ignore_errors=True)
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        max_position_embeddings=128, rope_theta=10000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=False, attn_implementation="eager")
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0, 0.2)
    model.save_pretrained(out / "model")
    (out / "model/generation_config.json").unlink(missing_ok=True)
    ids = torch.randint(0, 64, (1, 12))
    expected = {"input_ids": ids.to(torch.int32), "logits.base": model(ids).logits.detach()}
    for name, settings in ADAPTERS.items():
        base = LlamaForCausalLM.from_pretrained(
            out / "model", dtype=torch.float32, attn_implementation="eager").eval()
        adapted = get_peft_model(base, LoraConfig(
            task_type="CAUSAL_LM", init_lora_weights=False, **settings)).eval()
        half = name.endswith("f16")
        with torch.no_grad():
            for key, parameter in adapted.named_parameters():
                if "lora_" in key:
                    parameter.normal_(0, 0.15)
                    if half:
                        parameter.copy_(parameter.half().float())
        expected[f"logits.{name}"] = adapted(ids).logits.detach()
        adapted.save_pretrained(out / name, save_embedding_layers=False)
        (out / name / "README.md").unlink(missing_ok=True)
        file = out / name / "adapter_config.json"
        text = json.loads(file.read_text())
        # The folder that this script wrote to means nothing to a reader.
        text["base_model_name_or_path"] = "tiny-llama"
        file.write_text(json.dumps(text, indent=2) + "\n")
        if half:
            file = out / name / "adapter_model.safetensors"
            save_file({k: v.half() for k, v in load_file(file).items()}, file,
                      metadata={"format": "pt"})
    save_file(expected, out / "expected.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
