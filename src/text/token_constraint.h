// Which tokens may come next in one sequence: what the engine asks before it
// draws a token.
#pragma once

#include <cstdint>
#include <span>

namespace mlxcel {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Bit t % 32 of word t / 32 is set when token t may come next; tokens beyond
  // the last word may not. End tokens are in it only where the text may end.
  // Valid until accept(). Throws TextError when the grammar exceeds its limits.
  virtual std::span<const uint32_t> mask() = 0;
  // Takes the token that was drawn, one of the mask.
  virtual void accept(int32_t token) = 0;
  // Nothing but an end token may follow.
  virtual bool finished() const = 0;
};

}  // namespace mlxcel
