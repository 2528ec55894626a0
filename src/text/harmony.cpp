// gpt-oss: "<|channel|>analysis<|message|>...<|end|><|start|>assistant..." with
// the thoughts in the channel analysis, the answer in final, and calls in
// messages addressed to functions.NAME.
#include "text/held_text.h"
#include "text/tool_calls.h"

#include <array>

namespace mlxcel {

namespace {

constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kFunction = "to=functions.";
constexpr std::array<std::string_view, 4> kEnds = {
    "<|end|>", "<|call|>", "<|return|>", "<|start|>"};

class HarmonyReader : public ToolCallReader {
 public:
  explicit HarmonyReader(ReasoningFormat reasoning) : reasoning_(reasoning) {}

  void push(std::string_view text, std::vector<ChatDelta>* out) override {
    held_ += text;
    while (step(out, false)) {
    }
  }

  void finish(std::vector<ChatDelta>* out) override {
    while (step(out, true)) {
    }
  }

 private:
  using Kind = ChatDelta::Kind;

  bool step(std::vector<ChatDelta>* out, bool ended) {
    return header_ ? step_header(out, ended) : step_body(out, ended);
  }

  bool step_header(std::vector<ChatDelta>* out, bool ended) {
    // A model that leaves the format writes its answer at once.
    if (!held_.empty() && first_ && !held_.starts_with("<|") &&
        !may_begin(held_, "<|") && !held_.starts_with(" to=") &&
        !may_begin(held_, " to=")) {
      kind_ = Kind::content;
      header_ = first_ = false;
      return true;
    }
    size_t at = held_.find(kMessage);
    if (at == std::string::npos) {
      if (ended) {
        held_.clear();  // a header without a message says nothing
      }
      return false;
    }
    std::string header = held_.substr(0, at);
    held_.erase(0, at + kMessage.size());
    header_ = first_ = false;
    kind_ = header.find("<|channel|>analysis") != std::string::npos
                ? Kind::reasoning
                : Kind::content;
    if (size_t to = header.find(kFunction); to != std::string::npos) {
      size_t begin = to + kFunction.size();
      size_t end = std::min(header.find_first_of(" <", begin), header.size());
      kind_ = Kind::arguments;
      out->push_back(
          {Kind::call, header.substr(begin, end - begin), num_calls_++, {}});
    }
    return true;
  }

  bool step_body(std::vector<ChatDelta>* out, bool ended) {
    size_t at = std::string::npos, width = 0, kept = 0;
    for (std::string_view end : kEnds) {
      if (size_t found = held_.find(end); found < at) {
        at = found;
        width = end.size();
      }
      kept = std::max(kept, begun(held_, end));
    }
    bool closed = at != std::string::npos;
    size_t ready = closed ? at : ended ? held_.size() : held_.size() - kept;
    if (ready > 0) {
      std::string text = held_.substr(0, ready);
      if (kind_ == Kind::reasoning && reasoning_ == ReasoningFormat::none) {
        out->push_back({Kind::content, text, -1, {}});
      } else {
        if (kind_ == Kind::reasoning &&
            reasoning_ == ReasoningFormat::deepseek_legacy) {
          out->push_back({Kind::content, text, -1, {}});
        }
        out->push_back(
            {kind_,
             std::move(text),
             kind_ == Kind::arguments ? num_calls_ - 1 : -1,
             {}});
      }
    }
    held_.erase(0, closed ? at + width : ready);
    header_ = closed;
    return closed;
  }

  ReasoningFormat reasoning_;
  std::string held_;
  bool header_ = true, first_ = true;
  Kind kind_ = Kind::content;
};

}  // namespace

std::unique_ptr<ToolCallReader> make_harmony_reader(ReasoningFormat reasoning) {
  return std::make_unique<HarmonyReader>(reasoning);
}

}  // namespace mlxcel
