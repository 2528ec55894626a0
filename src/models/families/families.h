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
extern const Family smollm3;
extern const Family gemma;
extern const Family gemma2;
extern const Family gemma3;
extern const Family phi3;
extern const Family starcoder2;
extern const Family glm;
extern const Family glm4;
extern const Family exaone4;
extern const Family hunyuan_v1_dense;
extern const Family nanochat;
extern const Family muse_glimmer;
extern const Family olmo2;
extern const Family olmo3;
extern const Family mixtral;
extern const Family qwen2_moe;
extern const Family qwen3_moe;
extern const Family olmoe;

}  // namespace mlxcel
