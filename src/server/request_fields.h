// The fields that the generating routes share.
#pragma once

#include "server/adapters.h"
#include "server/body.h"
#include "server/generation.h"
#include "server/routes.h"
#include "server/served_model.h"

#include <string>
#include <vector>

namespace mlxcel::server {

// Temperature to XTC, `seed`, `logit_bias`, `ignore_eos` and `stop`: those that
// are given replace the defaults. Throws Failure that names the field.
void read_sampling(
    Body& body, const ServedModel& model, GenerationRequest& request);

// The parameters that /props and the answers of /completion list, by the names
// of the request's fields.
nlohmann::json sampling_json(const SamplingParams& params);

// llama-server's other sampling fields: `n_keep`, and those that have to stand
// at the value that changes nothing.
void read_native_sampling(
    Body& body, const ServedModel& model, GenerationRequest& request);

// `n_predict`, which gives one token for 0, else `otherwise`.
int64_t read_predicted(Body& body, int64_t otherwise);

// `lora`, and on routes with a model name the adapter that it names. Throws
// Failure: 404 for a model that is not served.
AdapterChoice read_adapters(
    Body& body, const ServedModel& model, const Adapters& adapters);

// `prompt`: a text, ids, texts and ids mixed, or an array of these; each is
// one prompt with one BOS, for `n` answers each. Throws Failure for other
// values, and for more answers than the server takes at a time.
std::vector<std::vector<int32_t>> read_prompts(
    const nlohmann::json& value, size_t n, const App& app);

// The ids of a text, with a warning in the log for a doubled BOS.
std::vector<int32_t> encode_text(
    const std::string& text, const ServedModel& model);

}  // namespace mlxcel::server
