// Architectures that the program knows by name and does not build yet: models
// with a tower, embedders, rerankers, speech and object detection.
#include "core/error.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

struct UnbuiltRow {
  const char* name;
  const char* type;
  std::vector<std::string> model_types, architectures;
  ModelKind kind;
  DirectoryRoute route;
  const char* picked_by = "";
};

std::vector<UnbuiltRow> unbuilt_rows() {
  const ModelKind generation = ModelKind::generation;
  const ModelKind embedding = ModelKind::embedding;
  const ModelKind reranker = ModelKind::reranker;
  const ModelKind audio = ModelKind::audio;
  const ModelKind detection = ModelKind::detection;
  const DirectoryRoute vlm = DirectoryRoute::vlm;
  const DirectoryRoute nonstandard = DirectoryRoute::nonstandard;
  return {
      {"Gemma 3 VLM",
       "Gemma3VLM",
       {},
       {},
       generation,
       vlm,
       "`gemma3` with a vision tower"},
      {"Gemma 3n VLM",
       "Gemma3nVLM",
       {},
       {},
       generation,
       vlm,
       "`gemma3n` with a vision tower"},
      {"Gemma 4 VLM",
       "Gemma4VLM",
       {},
       {},
       generation,
       vlm,
       "`gemma4` with a vision tower"},
      {"Gemma 4 Unified",
       "Gemma4Unified",
       {"gemma4_unified"},
       {"Gemma4UnifiedForConditionalGeneration"},
       generation,
       vlm},
      {"Mistral 3 VLM",
       "Mistral3VLM",
       {},
       {},
       generation,
       vlm,
       "`mistral3` with a vision tower"},
      {"Llama 4 VLM",
       "Llama4VLM",
       {},
       {},
       generation,
       vlm,
       "`llama4` with a vision tower"},
      {"Qwen 3.5 VLM",
       "Qwen35VLM",
       {},
       {},
       generation,
       vlm,
       "`qwen3_5` with a vision tower"},
      {"Qwen 3.5 MoE VLM",
       "Qwen35MoeVLM",
       {},
       {},
       generation,
       vlm,
       "`qwen3_5_moe` with a vision tower"},
      {"LLaVA",
       "LlavaVLM",
       {"llava"},
       {"LlavaForConditionalGeneration"},
       generation,
       vlm},
      {"Pixtral", "Pixtral", {"pixtral"}, {}, generation, vlm},
      {"Idefics 3",
       "Idefics3",
       {"idefics3"},
       {"Idefics3ForConditionalGeneration"},
       generation,
       vlm},
      {"SmolVLM",
       "SmolVLM",
       {"smolvlm"},
       {"SmolVLMForConditionalGeneration"},
       generation,
       vlm},
      {"Florence 2",
       "Florence2",
       {"florence2"},
       {"Florence2ForConditionalGeneration"},
       generation,
       vlm},
      {"Phi 4 Multimodal",
       "Phi4MMVLM",
       {"phi4mm", "phi4_multimodal"},
       {"Phi4MMForCausalLM", "Phi4MultimodalForCausalLM"},
       generation,
       vlm},
      {"MiniCPM-o", "MiniCPMOVLM", {"minicpmo"}, {"MiniCPMO"}, generation, vlm},
      {"Qwen 4 Exp", "Qwen4Exp", {"qwen4_exp"}, {}, generation, nonstandard},
      {"BERT", "Bert", {"bert"}, {"BertModel"}, embedding, nonstandard},
      {"XLM-RoBERTa",
       "XlmRoberta",
       {"xlm-roberta"},
       {"XLMRobertaModel"},
       embedding,
       nonstandard},
      {"ModernBERT",
       "ModernBert",
       {"modernbert"},
       {"ModernBertModel"},
       embedding,
       nonstandard},
      {"EmbeddingGemma",
       "EmbeddingGemma",
       {},
       {"Gemma3TextModel"},
       embedding,
       nonstandard,
       "`gemma3_text` with the class Gemma3TextModel"},
      {"EmbeddingGemma 2",
       "EmbeddingGemma2",
       {"embedding_gemma2"},
       {"EmbeddingGemma2Model"},
       embedding,
       nonstandard},
      {"Qwen 3 Embedding",
       "Qwen3Embedding",
       {},
       {},
       embedding,
       nonstandard,
       "`qwen3` with a pooling module"},
      {"Qwen 3 VL Embedding",
       "Qwen3VLEmbedding",
       {},
       {},
       embedding,
       vlm,
       "`qwen3_vl` with a pooling module"},
      {"ColIdefics3",
       "ColIdefics3",
       {"colidefics3"},
       {"ColIdefics3"},
       embedding,
       vlm},
      {"ColQwen2.5",
       "ColQwen25",
       {"colqwen2_5"},
       {"ColQwen2_5"},
       embedding,
       vlm},
      {"Sequence classifier",
       "SequenceClassifier",
       {},
       {"BertForSequenceClassification",
        "XLMRobertaForSequenceClassification",
        "ModernBertForSequenceClassification"},
       reranker,
       nonstandard,
       "encoders with the class ...ForSequenceClassification"},
      {"Whisper",
       "Whisper",
       {"whisper"},
       {"WhisperForConditionalGeneration"},
       audio,
       nonstandard},
      {"Kokoro", "Kokoro", {"kokoro"}, {}, audio, nonstandard},
      {"Nemotron VoiceChat",
       "NemotronVoiceChat",
       {"nemotron_voicechat"},
       {},
       audio,
       nonstandard},
      {"RT-DETR v2",
       "RtDetrV2",
       {"rt_detr_v2"},
       {"RTDetrV2ForObjectDetection"},
       detection,
       nonstandard},
      {"YOLO26", "Yolo26", {"yolo26"}, {}, detection, nonstandard},
  };
}

}  // namespace

const std::vector<Family>& unbuilt_families() {
  static const std::vector<Family> list = [] {
    std::vector<Family> families;
    for (const UnbuiltRow& row : unbuilt_rows()) {
      families.push_back(
          {.name = row.name,
           .type = row.type,
           .model_types = row.model_types,
           .architectures = row.architectures,
           .kind = row.kind,
           .directory_route = row.route,
           .weight_route = WeightRoute::none,
           .adapters = AdapterSupport::refused,
           .adapter_refusal =
               cat("LoRA adapters are not supported for ", row.name),
           .picked_by = row.picked_by});
    }
    return families;
  }();
  return list;
}

}  // namespace mlxcel
