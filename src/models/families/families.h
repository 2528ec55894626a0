// The families, one file each, in the order of the tables.
#pragma once

#include "models/family.h"

namespace mlxcel {

extern const Family llama;
extern const Family mistral;
extern const Family ministral3;
extern const Family mistral3;
extern const Family qwen2;
extern const Family qwen3;
extern const Family qwen2_vl;
extern const Family qwen2_5_vl;
extern const Family qwen3_vl;
extern const Family smollm3;
extern const Family gemma;
extern const Family gemma2;
extern const Family gemma3;
extern const Family gemma3n;
extern const Family gemma4;
extern const Family phi3;
extern const Family starcoder2;
extern const Family glm;
extern const Family glm4;
extern const Family exaone4;
extern const Family hunyuan_v1_dense;
extern const Family hunyuan;
extern const Family afmoe;
extern const Family llama4;
extern const Family nanochat;
extern const Family muse_glimmer;
extern const Family olmo2;
extern const Family olmo3;
extern const Family mixtral;
extern const Family qwen2_moe;
extern const Family qwen3_moe;
extern const Family olmoe;
extern const Family arcee;
extern const Family baichuan;
extern const Family bitnet;
extern const Family cohere;
extern const Family cohere2;
extern const Family ernie4_5;
extern const Family exaone;
extern const Family gpt2;
extern const Family gpt_bigcode;
extern const Family gpt_neox;
extern const Family gptj;
extern const Family granite;
extern const Family helium;
extern const Family internlm2;
extern const Family internlm3;
extern const Family mimo;
extern const Family minicpm;
extern const Family nemotron;
extern const Family nemotron_nas;
extern const Family olmo;
extern const Family openelm;
extern const Family phi;
extern const Family qwen;
extern const Family seed_oss;
extern const Family stablelm;
extern const Family deepseek;
extern const Family dots1;
extern const Family ernie4_5_moe;
extern const Family exaone_moe;
extern const Family glm4_moe;
extern const Family granitemoe;
extern const Family hunyuan_v1_moe;
extern const Family minimax_m2;
extern const Family phimoe;
extern const Family solar_open;
extern const Family gpt_oss;
extern const Family apertus;
extern const Family plamo;
extern const Family deepseek_v2;
extern const Family deepseek_v3;
extern const Family glm4_moe_lite;
extern const Family minicpm3;
extern const Family mamba;
extern const Family falcon_mamba;
extern const Family mamba2;
extern const Family jamba;
extern const Family recurrent_gemma;
extern const Family rwkv7;
extern const Family lfm2;
extern const Family olmo_hybrid;
extern const Family qwen3_next;
extern const Family qwen3_5;
extern const Family falcon_h1;
extern const Family minimax;
extern const Family qwen3_5_moe;
extern const Family lfm2_moe;
extern const Family granitemoehybrid;
extern const Family nemotron_h;
extern const Family baichuan_m1;
extern const Family longcat_flash;
extern const Family kimi_linear;
extern const Family dbrx;
extern const Family bailing_moe;
extern const Family phi3small;

// Architectures that are known and named, but not built yet.
const std::vector<Family>& unbuilt_families();

}  // namespace mlxcel
