#include "text/schema_divisors.h"

#include "core/error.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mlxcel {

namespace {

using Json = nlohmann::ordered_json;

// A grammar has a state for each remainder of a division.
constexpr uint64_t kMostRemainders = 10'000;
// Of all numbers of a schema together.
constexpr uint64_t kMostRemaindersInAll = 50'000;

// The number that was written; nothing where its digits are beyond the limit.
std::optional<Decimal> read_decimal(double value) {
  constexpr int kMostPlaces = 9;
  double scale = 1;
  for (int places = 0; places <= kMostPlaces; ++places, scale *= 10) {
    double whole = std::round(value * scale);
    if (whole > double(kMostRemainders)) {
      break;
    }
    // A decimal number of few digits is the double nearest to this quotient.
    if (whole >= 1 && whole / scale == value) {
      return Decimal{uint64_t(whole), places};
    }
  }
  return std::nullopt;
}

// The least common multiple; nothing when its digits are beyond the limit.
std::optional<Decimal> common_multiple(Decimal a, Decimal b) {
  int places = std::max(a.places, b.places);
  for (Decimal* value : {&a, &b}) {
    for (; value->places < places; ++value->places) {
      value->whole *= 10;  // stays below 10^4 * 10^9
    }
  }
  // The compiler multiplies them in 32 bits.
  if (a.whole > UINT32_MAX / b.whole) {
    return std::nullopt;
  }
  Decimal out{std::lcm(a.whole, b.whole), places};
  while (out.places > 0 && out.whole % 10 == 0) {
    out.whole /= 10;
    --out.places;
  }
  return out.whole <= kMostRemainders ? std::optional(out) : std::nullopt;
}

}  // namespace

void refuse_schema(const std::string& place, const std::string& why) {
  throw TextError(
      "the JSON schema cannot be used",
      cat("at ", place.empty() ? "its root" : place, ": ", why),
      "change the schema there");
}

std::string shown_json(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

void SchemaDivisors::add(const Json& value, const std::string& place) {
  bool positive = value.is_number() && value.get<double>() > 0;
  if (!positive) {
    refuse_schema(
        place, cat("a number above 0 is needed, not ", shown_json(value)));
  }
  std::optional<Decimal> by = read_decimal(value.get<double>());
  if (!by) {
    refuse_schema(
        place,
        cat("multiples of ",
            shown_json(value),
            " would need too large a grammar; without its decimal point the "
            "number may be ",
            kMostRemainders,
            " at most"));
  }
  ++uses_;
  sum_ += by->whole;
  common_ = sum_ == by->whole ? by  // the first
            : common_         ? common_multiple(*common_, *by)
                              : std::nullopt;
  if (!common_ && clash_.empty()) {
    clash_ = place;
  }
}

uint64_t SchemaDivisors::check() const {
  if (joined_ && !clash_.empty()) {
    refuse_schema(
        clash_,
        cat("multiples of this and of other numbers for the same value would "
            "need too large a grammar; without its decimal point the least "
            "common multiple of those in the schema may be ",
            kMostRemainders,
            " at most"));
  }
  uint64_t sum = sum_ > 0 && joined_ ? uses_ * common_->whole : sum_;
  check_sum(sum);
  return sum;
}

void SchemaDivisors::check_sum(uint64_t sum) {
  if (sum > kMostRemaindersInAll) {
    refuse_schema(
        "",
        cat("its multipleOf would need too large a grammar: without their "
            "decimal points they come to ",
            sum,
            ", where ",
            kMostRemaindersInAll,
            " is the most"));
  }
}

}  // namespace mlxcel
