#include "surgery/recipe.h"

#include "core/error.h"
#include "io/safetensors.h"
#include "support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace mlxcel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

class RecipeFile : public ::testing::Test {
 protected:
  RecipeFile() {
    std::byte* data = nullptr;
    WeightTensor tensor = make_weight(DType::f32, {2}, &data);
    std::memset(data, 0, tensor.bytes);
    WeightMap tensors;
    tensors.set("w", tensor);
    write_safetensors(folder_.path() / "d.safetensors", tensors);
  }

  Recipe read(const std::string& yaml) {
    return read_recipe(folder_.write("r.yaml", yaml));
  }

  // The message without the folder's name.
  std::string refusal(const std::string& yaml) {
    try {
      read(yaml);
    } catch (const SurgeryError& error) {
      std::string text = error.what();
      std::string folder = folder_.path().string() + "/";
      for (size_t at; (at = text.find(folder)) != std::string::npos;) {
        text.erase(at, folder.size());
      }
      return text;
    }
    return "accepted";
  }

  static std::string operation(const std::string& fields) {
    return "version: 1\noperations:\n- " + fields + "\n";
  }

  TemporaryFolder folder_;
};

TEST_F(RecipeFile, ReadsEveryOperation) {
  Recipe recipe = read(R"(
version: 1
operations:
- {op: scale, pattern: "a.*", factor: -2}
- op: add
  pattern: w
  source: ./d.safetensors
  requantize: true
- {op: prune, pattern: "*", granularity: attention_head, head_ids: [5, 1, 5]}
- {op: replace, pattern: "x.*.y", source: d.safetensors, source_key: "z*"}
- op: interpolate
  pattern: "*"
  source_a: d.safetensors
  source_b: .
  ratio: 1
  method: slerp
)");
  ASSERT_EQ(recipe.operations.size(), 5u);
  const Operation& scale = recipe.operations[0];
  EXPECT_EQ(scale.kind, OperationKind::scale);
  EXPECT_EQ(scale.factor, -2);
  EXPECT_EQ(scale.pattern.text(), "a.*");
  EXPECT_THAT(scale.place, HasSubstr("r.yaml, line 4, column 3"));
  const Operation& add = recipe.operations[1];
  EXPECT_EQ(add.alpha, 1);
  EXPECT_TRUE(add.requantize);
  EXPECT_TRUE(add.source->tensors.contains("w"));
  const Operation& prune = recipe.operations[2];
  EXPECT_EQ(prune.granularity, Granularity::attention_head);
  EXPECT_THAT(prune.ids, ElementsAre(1, 5));
  EXPECT_EQ(recipe.operations[3].source_key, "z*");
  const Operation& blend = recipe.operations[4];
  EXPECT_EQ(blend.method, Interpolation::slerp);
  EXPECT_EQ(blend.ratio, 1);
  // A folder stands for its tensor files.
  EXPECT_TRUE(blend.source_b->tensors.contains("w"));
}

TEST_F(RecipeFile, AcceptsAnIndexAsASource) {
  folder_.write(
      "model.safetensors.index.json",
      R"({"weight_map": {"w": "d.safetensors"}})");
  Recipe recipe = read(
      operation("{op: add, pattern: w, source: model.safetensors.index.json}"));
  EXPECT_TRUE(recipe.operations[0].source->tensors.contains("w"));
}

// The core schema of YAML 1.2, section 10.3.2.
TEST_F(RecipeFile, ReadsTheNumbersOfYaml) {
  for (auto [text, factor] : std::vector<std::pair<const char*, double>>{
           {"0x1F", 31},
           {"0o17", 15},
           {"017", 17},
           {"+12", 12},
           {"-.5", -0.5},
           {"1.", 1},
           {"2.5e-1", 0.25},
           {"1E2", 100},
           {"!!float 3", 3},
           {"&f 7", 7}}) {
    Recipe recipe =
        read(operation(cat("{op: scale, pattern: w, factor: ", text, "}")));
    EXPECT_EQ(recipe.operations[0].factor, factor) << text;
  }
  Recipe recipe = read(
      "version: 1\noperations:\n"
      "- {op: scale, pattern: \"é\", factor: &f 0x10}\n"
      "- {op: scale, pattern: w, factor: *f}\r\n"
      "- op: scale\n  pattern: w\n  factor: 3 # three\n");
  EXPECT_EQ(recipe.operations[1].factor, 16);
  EXPECT_EQ(recipe.operations[2].factor, 3);
  recipe = read(
      "version: 1\noperations:\n"
      "- &a {op: scale, pattern: w, factor: 4}\n"
      "- {<<: *a, pattern: v}\n");
  EXPECT_EQ(recipe.operations[1].factor, 4);
}

TEST_F(RecipeFile, TakesOtherSpellingsOfNumbersForTheTextsThatTheyAre) {
  for (const char* text :
       {"1_000", "0b11", "-0x10", "+0x10", "-0o7", "0x1_0", "1_0.5", "1,5e"}) {
    std::string yaml = cat(
        "version: 1\noperations:\n- op: scale\n  pattern: w\n  factor: ", text);
    EXPECT_THAT(
        refusal(yaml),
        HasSubstr(
            cat("line 5, column 11: factor is the string \"",
                text,
                "\", and a finite number is needed")));
  }
  EXPECT_THAT(
      refusal(operation("{op: prune, pattern: \"*\", granularity: layer, "
                        "layer_ids: [1, 1_0]}")),
      HasSubstr("layer_ids holds the string \"1_0\""));
}

TEST_F(RecipeFile, SaysWhereAndWhatIsWrong) {
  EXPECT_EQ(
      refusal("version: 1\noperations:\n- op: scale\n  pattern: a\n  factr: 2"),
      "bad surgery recipe r.yaml, line 5, column 10: unknown field factr\n"
      "  did you mean factor?");
  EXPECT_EQ(
      refusal(operation("{op: scal, pattern: a, factor: 2}")),
      "bad surgery recipe r.yaml, line 3, column 8: unknown operation scal\n"
      "  did you mean scale?");
  EXPECT_EQ(
      refusal(operation("{op: scale, pattern: a}")),
      "bad surgery recipe r.yaml, line 3, column 3: the field factor is "
      "missing\n"
      "  op: scale needs it");
  EXPECT_EQ(
      refusal(operation("{op: scale, pattern: a, factor: .nan}")),
      "bad surgery recipe r.yaml, line 3, column 35: factor is not a number, "
      "and a finite number is needed\n"
      "  write a plain number such as 0.5");
  EXPECT_EQ(
      refusal(operation("{op: scale, pattern: a, factor: -.inf}")),
      "bad surgery recipe r.yaml, line 3, column 35: factor is infinite, and "
      "a finite number is needed\n"
      "  write a plain number such as 0.5");
  EXPECT_EQ(
      refusal(operation("{op: scale, pattern: a, factor: 1e39}")),
      "bad surgery recipe r.yaml, line 3, column 35: factor is 1e+39, and "
      "weights are changed in f32\n"
      "  its largest number is about 3.4e38");
  EXPECT_EQ(
      refusal(operation("{op: scale, pattern: 'a[3-1]', factor: 1}")),
      "bad surgery recipe r.yaml, line 3, column 24: pattern: bad pattern "
      "a[3-1]: the range 3-1 runs backwards\n"
      "  write the smaller character first");
  EXPECT_EQ(
      refusal(operation("{op: add, pattern: a, source: no.safetensors}")),
      "bad surgery recipe r.yaml, line 3, column 33: source names "
      "no.safetensors, and there is no such file\n"
      "  relative paths start at the recipe's folder; ~ is not expanded");
  EXPECT_EQ(
      refusal(operation(
          "{op: prune, pattern: a, granularity: layer, layer_ids: [0, -1]}")),
      "bad surgery recipe r.yaml, line 3, column 62: layer_ids holds the "
      "number -1, and whole numbers from 0 are needed\n"
      "  write layer_ids: [0, 3]");
  EXPECT_EQ(
      refusal(operation(
          "{op: prune, pattern: a, granularity: layer, layer_ids: [0], "
          "head_ids: [1]}")),
      "bad surgery recipe r.yaml, line 3, column 73: the field head_ids does "
      "not belong to granularity layer\n"
      "  use layer_ids");
  EXPECT_EQ(
      refusal(operation(
          "{op: replace, pattern: 'a.*', source: d.safetensors, source_key: "
          "b}")),
      "bad surgery recipe r.yaml, line 3, column 68: source_key b has 0 "
      "wildcards (*) and pattern a.* has 1\n"
      "  each * of the pattern fills the * of source_key at its place");
  EXPECT_EQ(
      refusal(operation(
          "{op: interpolate, pattern: a, source_a: d.safetensors, source_b: "
          "d.safetensors, ratio: 1.5, method: lerp}")),
      "bad surgery recipe r.yaml, line 3, column 90: ratio is 1.5, and it "
      "lies between 0 and 1\n"
      "  0 is source_a alone, 1 source_b alone");
  EXPECT_EQ(
      refusal("version: 2\noperations: []"),
      "bad surgery recipe r.yaml, line 1, column 10: version is 2, and only 1 "
      "is known\n"
      "  write version: 1");
  EXPECT_EQ(
      refusal("version: 1\noperation: []"),
      "bad surgery recipe r.yaml, line 2, column 12: unknown field operation\n"
      "  did you mean operations or version?");
}

TEST_F(RecipeFile, SyntaxErrorsNameThePlace) {
  EXPECT_THAT(
      refusal("version: 1\nversion: 1\noperations: []"),
      ::testing::AllOf(HasSubstr("r.yaml"), HasSubstr("line 2, column 1")));
  EXPECT_THAT(
      refusal("version: 1\noperations: [\n"),
      ::testing::AllOf(HasSubstr("r.yaml"), HasSubstr("line ")));
  EXPECT_THAT(
      refusal("version: 1\noperations: *none\n"),
      ::testing::AllOf(HasSubstr("r.yaml"), HasSubstr("line 2")));
}

TEST_F(RecipeFile, AMissingFileAndAFolderAreNamed) {
  EXPECT_THROW(read_recipe(folder_.path() / "none.yaml"), SurgeryError);
  EXPECT_THROW(read_recipe(folder_.path()), SurgeryError);
}

}  // namespace
}  // namespace mlxcel
