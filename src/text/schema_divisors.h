// The parts of reading JSON schemas that bound what multipleOf costs.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace mlxcel {

// Throws TextError: what is wrong at this JSON pointer.
[[noreturn]] void refuse_schema(
    const std::string& place, const std::string& why);

// A value for messages, cut off where it is long.
std::string shown_json(const nlohmann::ordered_json& value);

// A positive decimal number as whole * 10^-places, without trailing zeros.
struct Decimal {
  uint64_t whole = 1;
  int places = 0;
};

// Bounds what multipleOf cost: a grammar has a state for each remainder of a
// division. Where schemas are joined (by allOf, by keywords beside $ref, anyOf
// or oneOf, by patterns of names), any of them may meet at one value.
class SchemaDivisors {
 public:
  // A multipleOf. Throws TextError where it is no number above 0, or too large.
  void add(const nlohmann::ordered_json& value, const std::string& place);
  // Schemas that hold where another one stands.
  void add_uses(size_t count) {
    uses_ += count;
  }
  void set_joined() {
    joined_ = true;
  }

  // What a grammar of these has to tell apart. Throws TextError where that is
  // too much.
  uint64_t check() const;
  static void check_sum(uint64_t sum);

 private:
  uint64_t sum_ = 0;
  uint64_t uses_ = 0;  // places where one of them may come to stand
  bool joined_ = false;
  std::optional<Decimal> common_;
  std::string clash_;  // where common_ ended; "": nowhere
};

}  // namespace mlxcel
