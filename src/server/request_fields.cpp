#include "server/request_fields.h"

#include "core/error.h"
#include "core/log.h"
#include "server/prompt_length.h"
#include "text/special_ids.h"

#include <charconv>
#include <cmath>
#include <random>

namespace mlxcel::server {

using http::Failure;
using nlohmann::json;

namespace {

// Of 32 bits, as llama-server's: answers repeat it as a JSON number, which many
// readers hold in a double.
uint64_t random_seed() {
  std::random_device device;
  return uint32_t(device());
}

constexpr int64_t kMaxInt = std::numeric_limits<int>::max();

void read_floats(Body& body, SamplingParams& p) {
  auto read = [&](std::string_view name, float& value) {
    const json* given = body.find(name);
    if (given != nullptr) {
      value = float(body.number(name, 0));
    }
  };
  read("temperature", p.temperature);
  read("top_p", p.top_p);
  read("min_p", p.min_p);
  read("repeat_penalty", p.repetition_penalty);
  read("repetition_penalty", p.repetition_penalty);
  read("presence_penalty", p.presence_penalty);
  read("frequency_penalty", p.frequency_penalty);
  read("dry_multiplier", p.dry_multiplier);
  read("dry_base", p.dry_base);
  read("xtc_probability", p.xtc_probability);
  read("xtc_threshold", p.xtc_threshold);
}

// The ids that a bias is for: an id, its decimal text, or a text's tokens.
std::vector<int32_t> bias_tokens(const json& key, const ServedModel& model) {
  if (key.is_number_integer()) {
    int64_t id =
        key.is_number_unsigned() && key.get<uint64_t>() > uint64_t(kMaxInt)
            ? -1
            : key.get<int64_t>();
    if (id < 0 || id >= model.vocab_size) {
      Body::refuse(
          "logit_bias",
          cat("names token ",
              key.dump(),
              ", outside the vocabulary of ",
              model.vocab_size));
    }
    return {int32_t(id)};
  }
  if (!key.is_string()) {
    Body::refuse(
        "logit_bias", cat("names a token by ", kind_of(key), "; give its id"));
  }
  std::string text = key.get<std::string>();
  int64_t id = 0;
  auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), id);
  if (error == std::errc() && end == text.data() + text.size()) {
    return bias_tokens(json(id), model);
  }
  check_length(text, TextUse::count, model);
  return model.tokenizer->encode(text, false);
}

void read_logit_bias(
    Body& body, const ServedModel& model, SamplingParams& params) {
  const json* value = body.find("logit_bias");
  if (value == nullptr) {
    return;
  }
  auto add = [&](const json& key, const json& bias) {
    float amount = 0;
    if (bias.is_boolean() && !bias.get<bool>()) {
      amount = -INFINITY;  // false bans the token
    } else if (bias.is_number()) {
      amount = float(bias.get<double>());
    } else {
      Body::refuse(
          "logit_bias",
          cat("holds ", kind_of(bias), " where a number or false belongs"));
    }
    for (int32_t token : bias_tokens(key, model)) {
      params.logit_bias.emplace_back(token, amount);
    }
    if (int64_t(params.logit_bias.size()) > model.vocab_size) {
      Body::refuse(
          "logit_bias",
          cat("has more entries than the vocabulary of ",
              model.vocab_size,
              " tokens"));
    }
  };
  if (value->is_object()) {
    for (const auto& [key, bias] : value->items()) {
      add(json(key), bias);
    }
  } else if (value->is_array()) {
    for (const json& pair : *value) {
      if (!pair.is_array() || pair.size() != 2) {
        Body::refuse("logit_bias", "must hold pairs [token, bias]");
      }
      add(pair[0], pair[1]);
    }
  } else {
    Body::refuse(
        "logit_bias",
        cat("must be an object or an array of pairs, not ", kind_of(*value)));
  }
}

}  // namespace

void read_sampling(
    Body& body, const ServedModel& model, GenerationRequest& request) {
  SamplingParams p = model.defaults.sampling;
  read_floats(body, p);
  auto read = [&](std::string_view name, int& value, int64_t least) {
    value = int(body.integer(name, value, least, kMaxInt));
  };
  read("top_k", p.top_k, -1);
  p.top_k = std::max(p.top_k, 0);  // -1 is off as well
  read("repeat_last_n", p.penalty_last_n, -1);
  read("dry_allowed_length", p.dry_allowed_length, 0);
  read("dry_penalty_last_n", p.dry_last_n, -1);
  // OpenAI's way to ask for the best token alone.
  if (p.top_p == 0) {
    p.top_p = 1;
    p.top_k = 1;
  }
  std::vector<std::string> breakers = model.defaults.dry_breakers;
  if (body.find("dry_sequence_breakers") != nullptr) {
    breakers = body.texts("dry_sequence_breakers");
    constexpr size_t kMost = 64;  // each is looked for in every token
    if (breakers.size() > kMost) {
      Body::refuse(
          "dry_sequence_breakers", cat("holds more than ", kMost, " texts"));
    }
    check_dry_breakers(breakers);
  }
  // Negative seeds other than -1 are seeds too.
  int64_t seed = body.integer("seed", -1);
  p.seed = seed != -1                    ? uint64_t(seed)
           : !model.defaults.random_seed ? model.defaults.sampling.seed
                                         : random_seed();
  read_logit_bias(body, model, p);
  check(p);
  if (p.dry_multiplier > 0) {
    p.dry_breakers = model.token_texts->holding(breakers);
  }
  request.sampling = std::move(p);
  request.ignore_eos = body.flag("ignore_eos", false);
  request.cache_prompt = body.flag("cache_prompt", model.defaults.cache_prompt);
  request.keep = model.defaults.keep;
  request.stops = body.texts("stop");
  for (const std::string& stop : request.stops) {
    if (stop.empty()) {
      Body::refuse("stop", "holds an empty string, which would match at once");
    }
  }
}

json sampling_json(const SamplingParams& params) {
  return {
      {"temperature", params.temperature},
      {"top_k", params.top_k},
      {"top_p", params.top_p},
      {"min_p", params.min_p},
      {"repeat_last_n", params.penalty_last_n},
      {"repeat_penalty", params.repetition_penalty},
      {"presence_penalty", params.presence_penalty},
      {"frequency_penalty", params.frequency_penalty}};
}

namespace {

// The sampling steps in their order, as a list of names or llama-server's
// letters, without those that are off here for good.
void check_samplers(Body& body) {
  const json* given = body.find("samplers");
  if (given == nullptr) {
    return;
  }
  const std::vector<std::string> order = {
      "penalties", "dry", "top_k", "top_p", "min_p", "xtc", "temperature"};
  std::vector<std::string> names;
  bool letters = given->is_string() && *given == "edskypmxt";
  if (letters) {
    names = order;
  } else {
    for (const std::string& name : body.texts("samplers")) {
      if (name != "top_n_sigma" && name != "typ_p" && name != "typical_p") {
        names.push_back(name);
      }
    }
  }
  if (names != order) {
    Body::refuse(
        "samplers",
        cat("is not supported: the order of the sampling steps is fixed; "
            "leave it out or give ",
            json(order).dump()));
  }
}

}  // namespace

void read_native_sampling(
    Body& body, const ServedModel& model, GenerationRequest& request) {
  if (model.context_shift) {
    request.keep = body.integer("n_keep", request.keep, -1);
  } else {
    body.neutral("n_keep", {0}, "the server runs without --context-shift");
  }
  body.neutral("n_discard", {0});
  body.neutral("t_max_predict_ms", {0, -1});
  body.neutral("typical_p", {1, 1.0});
  body.neutral("dynatemp_range", {0, 0.0});
  body.neutral("dynatemp_exponent", {1, 1.0});
  body.neutral("top_n_sigma", {-1, -1.0, 0, 0.0});
  body.neutral("mirostat", {0});
  body.neutral("min_keep", {0});
  // Only read where mirostat is on.
  body.ignore({"mirostat_tau", "mirostat_eta"});
  body.neutral("speculative.n_max", {0});
  body.neutral("speculative.n_min", {0});
  body.neutral("speculative.p_min", {0, 0.0});
  check_samplers(body);
}

int64_t read_predicted(Body& body, int64_t otherwise) {
  int64_t limit = body.integer("n_predict", otherwise, -1);
  return body.find("n_predict") != nullptr && limit == 0 ? 1 : limit;
}

AdapterChoice read_adapters(
    Body& body, const ServedModel& model, const Adapters& adapters) {
  const json* lora = body.find("lora");
  std::optional<std::string> name = body.text("model");
  if (name && !name->empty() && *name != model.alias) {
    std::optional<AdapterChoice> named = adapters.named(*name);
    if (!named) {
      std::string known = cat("'", model.alias, "'");
      for (const std::string& other : adapters.model_names()) {
        known += cat(", '", other, "'");
      }
      Failure failure(
          404,
          "not_found_error",
          cat("the model '", *name, "' is not served here; there is ", known));
      failure.param = "model";
      failure.code = "model_not_found";
      throw failure;
    }
    if (lora != nullptr) {
      Body::refuse(
          "lora",
          "and a model name that chooses an adapter exclude each other");
    }
    return *named;
  }
  return lora != nullptr ? adapters.chosen(*lora) : adapters.current();
}

std::vector<int32_t> encode_text(
    const std::string& text, const ServedModel& model) {
  check_length(text, TextUse::prompt, model);
  std::string warning;
  std::vector<int32_t> ids =
      encode_prompt(*model.tokenizer, text, PromptKind::plain, &warning);
  if (!warning.empty()) {
    log_warning(warning);
  }
  return ids;
}

namespace {

int32_t prompt_token(const json& value, const ServedModel& model) {
  bool inside = value.is_number_unsigned() &&
                value.get<uint64_t>() < uint64_t(model.vocab_size);
  if (!inside) {
    Body::refuse(
        "prompt",
        cat("holds token ",
            value.dump(),
            ", outside the vocabulary of ",
            model.vocab_size,
            " tokens"));
  }
  return value.get<int32_t>();
}

// Ids and texts in turn; a text in front gets the BOS.
std::vector<int32_t> mixed_prompt(const json& parts, const ServedModel& model) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].is_string()) {
      std::string text = parts[i].get<std::string>();
      check_length(text, TextUse::prompt, model);
      std::vector<int32_t> more = i == 0 ? encode_text(text, model)
                                         : model.tokenizer->encode(text, false);
      ids.insert(ids.end(), more.begin(), more.end());
    } else {
      ids.push_back(prompt_token(parts[i], model));
    }
  }
  return ids;
}

}  // namespace

std::vector<std::vector<int32_t>> read_prompts(
    const json& value, size_t n, const App& app) {
  const ServedModel& model = app.model;
  app.service.check_count(n);
  if (value.is_string()) {
    return {encode_text(value.get<std::string>(), model)};
  }
  if (!value.is_array() || value.empty()) {
    Body::refuse(
        "prompt",
        cat("must be a text, an array of token ids, or an array of prompts, "
            "not ",
            value.is_array() ? "an empty array" : kind_of(value)));
  }
  bool numbers = false, texts = false, arrays = false;
  for (const json& part : value) {
    numbers |= part.is_number_integer();
    texts |= part.is_string();
    arrays |= part.is_array();
    if (!part.is_number_integer() && !part.is_string() && !part.is_array()) {
      Body::refuse("prompt", cat("cannot hold ", kind_of(part)));
    }
  }
  if (numbers && arrays) {
    Body::refuse("prompt", "mixes token ids and whole prompts");
  }
  if (numbers) {
    return {mixed_prompt(value, model)};
  }
  app.service.check_count(value.size() * n);
  std::vector<std::vector<int32_t>> prompts;
  for (const json& part : value) {
    if (part.is_string()) {
      prompts.push_back(encode_text(part.get<std::string>(), model));
      continue;
    }
    for (const json& entry : part) {
      if (!entry.is_number_integer() && !entry.is_string()) {
        Body::refuse("prompt", cat("cannot hold ", kind_of(entry), " there"));
      }
    }
    prompts.push_back(mixed_prompt(part, model));
  }
  return prompts;
}

}  // namespace mlxcel::server
