#include "server/served_model.h"

#include "text/token_bytes.h"

namespace mlxcel::server {

std::string ServedModel::piece(int32_t token) const {
  return to_utf8(token_bytes(*tokenizer, token));
}

}  // namespace mlxcel::server
