#include "server/figures.h"

#include <array>

namespace mlxcel::server {

namespace {

constexpr std::array<double, 8> kRowBounds = {1, 2, 4, 8, 16, 64, 256, 1024};

}  // namespace

Service::Figures::Figures(http::Registry& r)
    : registry(r),
      requests(
          r.counter("mlxcel_requests_total", "Sequences that were asked for")),
      refused(r.counter(
          "mlxcel_requests_refused_total",
          "Requests that the queue had no place for")),
      cancelled(r.counter(
          "mlxcel_requests_cancelled_total",
          "Sequences whose client went away")),
      prompt_tokens(r.counter(
          "mlxcel_prompt_tokens_total", "Prompt tokens, cached ones too")),
      cached_tokens(r.counter(
          "mlxcel_prompt_tokens_cached_total",
          "Prompt tokens taken from the prefix cache")),
      generated_tokens(
          r.counter("mlxcel_generated_tokens_total", "Tokens that were drawn")),
      queue_time(r.histogram(
          "mlxcel_queue_seconds", "From arrival to the first step")),
      first_token(r.histogram(
          "mlxcel_time_to_first_token_seconds",
          "From arrival to the first token")),
      inter_token(r.histogram(
          "mlxcel_inter_token_seconds", "Between two tokens of a sequence")),
      request_time(r.histogram(
          "mlxcel_request_seconds", "From arrival to the last token")),
      batch_rows(r.histogram(
          "mlxcel_batch_rows", "Rows of a forward pass", kRowBounds)),
      running(r.gauge("mlxcel_sequences_running", "Sequences in the batch")),
      waiting(r.gauge(
          "mlxcel_sequences_waiting",
          "Sequences that wait for a place or memory")),
      kv_blocks(r.gauge("mlxcel_kv_blocks_used", "KV cache blocks in use")),
      kv_block_limit(r.gauge(
          "mlxcel_kv_blocks_limit",
          "KV cache blocks there may be; 0: no limit")),
      cache_bytes(
          r.gauge("mlxcel_prefix_cache_bytes", "What the prefix cache holds")),
      cache_entries(
          r.gauge("mlxcel_prefix_cache_entries", "Ends of sequences it holds")),
      prefill_rate(r.gauge(
          "mlxcel_prefill_tokens_per_second",
          "Prompt tokens a second, of the last request")),
      decode_rate(r.gauge(
          "mlxcel_decode_tokens_per_second",
          "Generated tokens a second, of the last request")),
      cache_lookups(r.counter(
          "mlxcel_prefix_cache_lookups_total", "Sequences that asked it")),
      cache_hits(r.counter(
          "mlxcel_prefix_cache_hits_total", "Sequences that it began")),
      cache_hit_tokens(r.counter(
          "mlxcel_prefix_cache_hit_tokens_total", "Tokens taken from it")),
      cache_evictions(r.counter(
          "mlxcel_prefix_cache_evicted_blocks_total", "Blocks it gave up")),
      steps(r.counter("mlxcel_steps_total", "Forward passes")),
      preemptions(r.counter(
          "mlxcel_preemptions_total", "Sequences that gave way to others")),
      llama_prompt_tokens(
          r.counter("llamacpp:prompt_tokens_total", "Prompt tokens processed")),
      llama_prompt_seconds(
          r.counter("llamacpp:prompt_seconds_total", "Prompt process time")),
      llama_predicted_tokens(r.counter(
          "llamacpp:tokens_predicted_total", "Generation tokens processed")),
      llama_predicted_seconds(r.counter(
          "llamacpp:tokens_predicted_seconds_total", "Predict process time")),
      llama_decodes(r.counter(
          "llamacpp:n_decode_total", "Forward passes, as llama-server counts")),
      llama_prompt_rate(r.gauge(
          "llamacpp:prompt_tokens_seconds", "Prompt throughput in tokens/s")),
      llama_predicted_rate(r.gauge(
          "llamacpp:predicted_tokens_seconds",
          "Generation throughput in tokens/s")),
      llama_processing(
          r.gauge("llamacpp:requests_processing", "Requests processing")),
      llama_deferred(
          r.gauge("llamacpp:requests_deferred", "Requests deferred")) {}

Service::Figures::ByAdapter& Service::Figures::adapter(
    const std::string& name) {
  auto place = adapters_.find(name);
  if (place == adapters_.end()) {
    http::Labels labels = {{"adapter", name}};
    place = adapters_
                .emplace(
                    name,
                    ByAdapter{
                        &registry.counter(
                            "mlxcel_adapter_requests_total",
                            "Sequences with the adapter in force",
                            labels),
                        &registry.counter(
                            "mlxcel_adapter_generated_tokens_total",
                            "Tokens drawn with the adapter in force",
                            labels),
                        &registry.counter(
                            "mlxcel_adapter_prefix_cache_hits_total",
                            "Sequences with it that began in the prefix cache",
                            labels)})
                .first;
  }
  return place->second;
}

void Service::Figures::count_request(const GenerationRequest& request) {
  requests.add();
  for (const std::string& name : request.adapters.names) {
    adapter(name).requests->add();
  }
}

void Service::Figures::count_end(
    const GenerationRequest& request, const GenerationEnd& end) {
  double evaluated = double(end.prompt_tokens - end.cached_tokens);
  double drawn = double(end.tokens.size());
  prompt_tokens.add(double(end.prompt_tokens));
  cached_tokens.add(double(end.cached_tokens));
  generated_tokens.add(drawn);
  queue_time.observe(end.queue_seconds);
  request_time.observe(
      end.queue_seconds + end.prompt_seconds + end.decode_seconds);
  llama_prompt_tokens.add(evaluated);
  llama_prompt_seconds.add(end.prompt_seconds);
  llama_predicted_tokens.add(drawn);
  llama_predicted_seconds.add(end.decode_seconds);
  if (end.prompt_seconds > 0) {
    prefill_rate.set(evaluated / end.prompt_seconds);
    llama_prompt_rate.set(evaluated / end.prompt_seconds);
  }
  if (end.decode_seconds > 0 && drawn > 1) {
    decode_rate.set((drawn - 1) / end.decode_seconds);
    llama_predicted_rate.set((drawn - 1) / end.decode_seconds);
  }
  for (const std::string& name : request.adapters.names) {
    adapter(name).tokens->add(drawn);
    adapter(name).hits->add(end.cached_tokens > 0 ? 1 : 0);
  }
}

void Service::Figures::update(Engine& engine) {
  const EngineStats& now = engine.stats();
  if (now.steps > seen_.steps) {
    steps.add(double(now.steps - seen_.steps));
    llama_decodes.add(double(now.steps - seen_.steps));
    preemptions.add(double(now.preemptions - seen_.preemptions));
    batch_rows.observe(double(
        now.prompt_rows + now.generated_rows - seen_.prompt_rows -
        seen_.generated_rows));
    seen_ = now;
  }
  PrefixCache& cache = engine.prefix_cache();
  const PrefixCacheStats& hits = cache.stats();
  cache_lookups.add(double(hits.lookups - seen_cache_.lookups));
  cache_hits.add(double(hits.hits - seen_cache_.hits));
  cache_hit_tokens.add(double(hits.hit_positions - seen_cache_.hit_positions));
  cache_evictions.add(double(hits.evicted_blocks - seen_cache_.evicted_blocks));
  seen_cache_ = hits;
  running.set(engine.num_running());
  waiting.set(engine.num_waiting());
  llama_processing.set(engine.num_running());
  llama_deferred.set(engine.num_waiting());
  kv_blocks.set(engine.blocks().used());
  kv_block_limit.set(engine.blocks().max_blocks());
  cache_bytes.set(
      double(cache.num_blocks()) * double(engine.blocks().block_bytes()));
  cache_entries.set(cache.num_entries());
}

}  // namespace mlxcel::server
