// What the service counts for Prometheus: families llamacpp:* as llama-server
// names them, and mlxcel_*.
#pragma once

#include "http/metrics.h"
#include "server/service.h"

namespace mlxcel::server {

struct Service::Figures {
  explicit Figures(http::Registry& registry);

  void count_request(const GenerationRequest& request);
  void count_end(const GenerationRequest& request, const GenerationEnd& end);
  // Gauges of what the engine holds now.
  void update(Engine& engine);

  http::Registry& registry;
  http::Counter& requests;
  http::Counter& refused;
  http::Counter& cancelled;
  http::Counter& prompt_tokens;
  http::Counter& cached_tokens;
  http::Counter& generated_tokens;
  http::Histogram& queue_time;
  http::Histogram& first_token;
  http::Histogram& inter_token;
  http::Histogram& request_time;
  http::Histogram& batch_rows;
  http::Gauge& running;
  http::Gauge& waiting;
  http::Gauge& kv_blocks;
  http::Gauge& kv_block_limit;
  http::Gauge& cache_bytes;
  http::Gauge& cache_entries;
  http::Gauge& prefill_rate;
  http::Gauge& decode_rate;
  http::Counter& cache_lookups;
  http::Counter& cache_hits;
  http::Counter& cache_hit_tokens;
  http::Counter& cache_evictions;
  http::Counter& steps;
  http::Counter& preemptions;
  // llama-server's names.
  http::Counter& llama_prompt_tokens;
  http::Counter& llama_prompt_seconds;
  http::Counter& llama_predicted_tokens;
  http::Counter& llama_predicted_seconds;
  http::Counter& llama_decodes;
  http::Gauge& llama_prompt_rate;
  http::Gauge& llama_predicted_rate;
  http::Gauge& llama_processing;
  http::Gauge& llama_deferred;

 private:
  struct ByAdapter {
    http::Counter* requests;
    http::Counter* tokens;
    http::Counter* hits;
  };
  ByAdapter& adapter(const std::string& name);

  std::map<std::string, ByAdapter> adapters_;
  EngineStats seen_;
  PrefixCacheStats seen_cache_;
};

}  // namespace mlxcel::server
